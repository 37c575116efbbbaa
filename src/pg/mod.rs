//! The floor made for PostgreSQL's C: SPI, tables read and written by row address, the catalog, lock tags, clocks, and
//! values as they come from and go to SQL. It knows no lease and no session, and imports from [`crate::base`] alone.
//!
//! Files, low to high: clock, json, lock_timeout, notify, random, savepoint, server, text, lock, transaction, order,
//! guard, user_lock, statement, role, types, oids, catalog, repack, required, row, version, spi, table, statistics,
//! mod.

pub mod catalog;
pub mod clock;
pub mod guard;
pub mod json;
pub mod lock;
pub mod lock_timeout;
pub mod notify;
pub mod oids;
pub mod order;
pub mod random;
#[cfg(feature = "pg19")]
pub mod repack;
pub mod required;
pub mod role;
pub mod row;
pub mod savepoint;
pub mod server;
pub mod spi;
pub mod statement;
pub mod statistics;
pub mod table;
pub mod text;
pub mod transaction;
pub mod types;
pub mod user_lock;
pub mod version;
