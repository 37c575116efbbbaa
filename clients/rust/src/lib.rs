//! Leaders, consumer groups, work items and run-once keys in PostgreSQL, under fences.
//!
//! A process opens one keeper, [`Leases`], which has a session with one heartbeat, and four verbs:
//! [`lead`](Leases::lead), [`join`](Leases::join), [`work`](Leases::work) and [`once`](Leases::once).
//!
//! ```no_run
//! # async fn example(dsn: &str) -> Result<(), eskit_lease::BoxError> {
//! let leases = eskit_lease::Leases::builder(dsn).name("billing-1").open().await?;
//! let mut client = eskit_lease::connect(dsn).await?;
//! let lead = leases.lead("sub:orders").await?;
//! lead.transaction(&mut client, async |tx| Ok(tx.execute("INSERT INTO runs VALUES (now())", &[]).await?)).await?;
//! lead.release().await;
//! leases.close().await;
//! # Ok(())
//! # }
//! ```

// Files, low to high: error, core, line, connect, settings, keeper, scope, transaction, verb, leases, lead, group,
// work, once, sqlx.
mod connect;
mod core;
mod error;
mod group;
mod keeper;
mod lead;
mod leases;
mod line;
mod once;
mod scope;
mod settings;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod transaction;
mod verb;
mod work;

pub use connect::connect;
pub use error::{BoxError, Cause, Error, State};
pub use group::Partition;
pub use keeper::Leases;
pub use lead::Lead;
pub use once::Once;
pub use scope::Scope;
pub use settings::Builder;
pub use verb::Running;
pub use work::Item;
