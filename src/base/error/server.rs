//! Errors of the server, its library, its connection, or of how the library is called.

use super::report::{Report, raised, report};
use crate::base::{VERSION, settings};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum ServerError {
    NotPreloaded,
    AnotherPreloaded,
    NoExtension,
    SchemaRenamed,
    LibraryOlder(String),
    Unserved(String),
    Recovery,
    ReadOnly(&'static str),
    DatabasesFull,
    FormerName { former: &'static str, today: &'static str },
}

raised!(ServerError);

impl From<ServerError> for Report {
    fn from(error: ServerError) -> Report {
        use ServerError::*;
        let state = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match error {
            NotPreloaded => report(state, "eskit_lease must be loaded via shared_preload_libraries")
                .set_hint("Add eskit_lease to shared_preload_libraries and restart the server."),
            AnotherPreloaded => report(state, "shared memory is that of another build of eskit_lease")
                .set_detail(format!(
                    "The server was started with it. This is the library of version {VERSION}, from another file."
                ))
                .set_hint("Restart the server."),
            NoExtension => {
                report(Code::ERRCODE_UNDEFINED_OBJECT, "extension eskit_lease is not in this database any more")
            }
            SchemaRenamed => report(state, "the schema of extension eskit_lease has been renamed").set_hint(
                "Name it eskit_lease again (ALTER SCHEMA .. RENAME TO eskit_lease); if another schema has that name \
                 now, rename that one first.",
            ),
            LibraryOlder(than) => {
                report(state, format!("library of eskit_lease is of version {VERSION}, before {than}")).set_hint(
                    "Restart the server, so that it loads the library that has been installed, and update then. \
                     Without preload, connect again.",
                )
            }
            Unserved(why) => report(
                state,
                format!(
                    "objects of extension eskit_lease in this database are not those that its library of version \
                     {VERSION} needs"
                ),
            )
            .set_detail(why)
            .set_hint(
                "Run ALTER EXTENSION eskit_lease UPDATE. If that finds nothing to do, install the library of that \
                 version and restart the server.",
            ),
            Recovery => {
                report(Code::ERRCODE_READ_ONLY_SQL_TRANSACTION, "cannot use sessions and leases during recovery")
                    .set_hint("Connect to the primary server.")
            }
            ReadOnly(verb) => report(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {verb} in a read-only transaction"),
            )
            .set_hint(
                "Only session_heartbeat, session_wait, session_watch, session_detach, notify_me, lease_renew, \
                 fence_check, group_assignment, cursor_position, position_horizon and, where they change nothing, \
                 lease_acquire and lease_acquire_many work in a read-only transaction.",
            ),
            DatabasesFull => report(Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED, "too many databases with sessions")
                .set_detail(format!("eskit_lease.max_databases is {}.", settings::MAX_DATABASES.get()))
                .set_hint("Raise eskit_lease.max_databases and restart the server."),
            FormerName { former, today } => report(
                Code::ERRCODE_WARNING_DEPRECATED_FEATURE,
                format!("{former}() is the former name of {today}(), and deprecated"),
            )
            .set_hint(format!("Call eskit_lease.{today}().")),
        }
    }
}
