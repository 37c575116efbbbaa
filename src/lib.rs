//! eskit_lease: competing consumers for PostgreSQL. It has sessions with one heartbeat for everything, leases with
//! fencing tokens that hold at commit time, and hand-over within milliseconds.
//!
//! Data flows one way: from an SQL function in a concept's module ([`ending::verbs`], [`lease::verbs`] and others)
//! through [`pg::table`] (rows by address) or [`pg::spi`] (statements) to the rows. A heartbeat stops at [`shmem`], the
//! shared memory. [`seam`] joins the two when a transaction ends. The [`worker`] calls the same modules as the SQL
//! functions. The head of each module describes its protocol.
//!
//! A module imports only from floors below its own, which `pg_test/tidy` proves. A floor is a folder; from low to high:
//!
//! 1. [`base`]: errors, settings, intervals
//! 2. [`pg`]: PostgreSQL's C: SPI, tables, the catalog, lock tags, values
//! 3. [`keys`]: the folds of names, pure
//! 4. [`shmem`]: which sessions live: shared memory, where heartbeats stop
//! 5. [`seam`]: what shared memory learns when a transaction ends
//! 6. [`call`]: one call of a verb
//! 7. [`session`]: rows of sessions, and which of them live
//! 8. [`lease`]: leases, semaphores and locks, with their fences
//! 9. [`group`], [`bridge`], [`execution`], [`position`], [`fenced`]: a concept each; none imports another
//! 10. [`item`]: queues of work items; a queue may be bound to a group
//! 11. [`ending`]: close, take-over, the sweep, retention
//! 12. [`admin`]: privileges, and what views show
//! 13. [`worker`]: the background workers

mod admin;
mod base;
mod bridge;
mod call;
mod ending;
mod execution;
mod fenced;
mod group;
mod item;
mod keys;
mod lease;
mod pg;
mod position;
mod seam;
mod session;
mod shmem;
mod worker;

use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
/// pgrx looks here for the schema that functions name; schema.sql creates it.
#[pg_schema]
mod eskit_lease {}

extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [
        keys::group_lock_key,
        admin::reading::_standing,
        admin::reading::_ended_at,
        admin::reading::_revoke_in,
        admin::reading::_refusals,
        admin::reading::_open_transaction,
        item::counts::_count_items
    ]
);
extension_sql_file!("../sql/watching.sql", name = "watching", requires = ["views"]);
extension_sql_file!("../sql/functions.sql", name = "functions", finalize);

/// Sets the library up. Without shared_preload_libraries dump, restore and upgrade work, and so do functions that need
/// no shared memory, such as those of keys. All other functions raise an error that says what is missing.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    lease::kind::register(&group::OfGroups, &bridge::OfBridges);
    group::bound::register(&item::Queues);
    if pg::server::is_preloading() {
        base::settings::define_at_preload();
        pg::server::reserve_settings(c"eskit_lease");
        shmem::install();
        worker::launcher::register();
        #[cfg(feature = "pg19")]
        pg::repack::install();
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[path = "../pg_test/mod.rs"]
pub mod pg_test;
