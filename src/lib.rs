//! eskit_lease: competing consumers for PostgreSQL. Sessions with one heartbeat for everything, leases with fencing tokens that hold at
//! commit time, hand-over in milliseconds.
//!
//! Data flows one way: an SQL function in a concept module ([`session`], [`lease`], [`fence`], [`queue`]), one parameterised statement
//! through [`spi`], rows. A heartbeat stops at [`liveness`], the shared memory. [`seam`] joins the two when a transaction ends, and the
//! [`worker`] calls the same modules as everybody else. Each module's head says its protocol.

mod acquire;
mod bridge;
mod call;
mod catalog;
mod claim;
mod cursor;
mod declaration;
mod error;
mod execution;
mod fence;
mod fenced;
mod floor;
mod grace;
mod grant;
mod group;
mod guard;
mod handover;
mod history;
mod holders;
mod interval;
mod item;
mod json;
mod keys;
mod lease;
mod liveness;
mod lock;
mod oids;
mod position;
mod privilege;
mod queue;
mod reading;
mod refence;
mod release;
mod retention;
mod row;
mod savepoint;
mod seam;
mod semaphore;
mod session;
mod settings;
mod spi;
mod sweep;
mod table;
mod text;
mod version;
mod worker;

use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

/// Bytes of a name, in UTF-8.
const MAX_NAME: usize = 255;
/// Names in one call.
const MAX_NAMES: usize = 100_000;

extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
/// Where pgrx looks for the schema that functions name; schema.sql makes it.
#[pg_schema]
mod eskit_lease {}

extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [keys::group_lock_key, reading::_standing, reading::_revoke_in, reading::_open_transaction]
);
extension_sql_file!("../sql/watching.sql", name = "watching", requires = ["views"]);
extension_sql_file!("../sql/functions.sql", name = "functions", finalize);

/// Without shared_preload_libraries the keys work, and so do dump, restore and upgrade; the rest says what is missing when called.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain read
    if unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        settings::define_at_preload();
        liveness::install();
        worker::launcher::register();
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[path = "../pg_test/mod.rs"]
pub mod pg_test;
