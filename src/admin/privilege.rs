//! Privileges: these two functions grant what consumers and monitors need. They run as their caller, so PostgreSQL's
//! own rules for GRANT say who may.

use crate::base::error::Result;
use crate::bridge;
use crate::call::Given;
use crate::lease::history;
use crate::pg::oids::Role;
use crate::pg::{catalog, role, spi};
use pgrx::pg_sys::{BOOLOID, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, INTERVALOID, REGCLASSOID, TEXTOID, UUIDOID};
use pgrx::prelude::*;

/// Runs those `GRANT .. TO role` statements whose objects exist. GRANT takes no parameters, so PostgreSQL quotes the
/// role's name.
fn grant(statements: &[(bool, &str)], role: Option<Role>) -> Result<()> {
    let Role(role) = role.given("role")?;
    let name = role::quoted_name(role);
    let there: Vec<&str> = statements.iter().filter(|(there, _)| *there).map(|(_, statements)| *statements).collect();
    spi::run_as_caller(&there.join(";\n").replace("{role}", &name));
    Ok(())
}

const NOTIFY_ME: &str = include_str!("../../sql/query/privilege/notify_me.sql");

fn has_notify_me() -> bool {
    catalog::has_function(c"notify_me", &[INTERVALOID])
}

fn has_lease_declare() -> bool {
    catalog::has_function(c"lease_declare", &[TEXTOID, BOOLOID])
}

#[pg_extern(schema = "eskit_lease")]
fn grant_consumer(role: Option<Role>) -> Result<()> {
    let release_many = catalog::has_function(c"group_release_many", &[TEXTOID, INT4ARRAYOID, INT8ARRAYOID]);
    let consumer = include_str!("../../sql/query/privilege/consumer.sql");
    let many = include_str!("../../sql/query/privilege/release_many.sql");
    let names = include_str!("../../sql/query/privilege/consumer_names.sql");
    let has_watch = catalog::has_function(c"session_watch", &[UUIDOID, REGCLASSOID]);
    let wait_many = include_str!("../../sql/query/privilege/wait_many.sql");
    let statements = [
        (true, consumer),
        (release_many, many),
        (catalog::has_wait_many(), wait_many),
        (has_watch, include_str!("../../sql/query/privilege/session_watch.sql")),
        (catalog::has_objects_of_today(), names),
        (has_notify_me(), NOTIFY_ME),
        (has_lease_declare(), include_str!("../../sql/query/privilege/declare.sql")),
    ];
    grant(&statements, role)
}

#[pg_extern(schema = "eskit_lease")]
fn grant_monitor(role: Option<Role>) -> Result<()> {
    let monitor = include_str!("../../sql/query/privilege/monitor.sql");
    let bridges = include_str!("../../sql/query/privilege/monitor_bridges.sql");
    let watch = include_str!("../../sql/query/privilege/watch.sql");
    let blockers = include_str!("../../sql/query/privilege/monitor_blockers.sql");
    let open_transaction = catalog::has_function(c"_open_transaction", &[pg_sys::XIDOID]);
    let counts = include_str!("../../sql/query/privilege/monitor_counts.sql");
    let count_held = catalog::has_function(c"_count_held", &[]);
    let names = include_str!("../../sql/query/privilege/monitor_names.sql");
    let refusals = include_str!("../../sql/query/privilege/monitor_refusals.sql");
    let ended = include_str!("../../sql/query/privilege/monitor_ended.sql");
    let ended_at = catalog::has_function(c"_ended_at", &[UUIDOID, INT8OID, INT4OID]);
    let statements = [
        (true, monitor),
        (bridge::may_be(), bridges),
        (history::is_there(), watch),
        (open_transaction, blockers),
        (count_held, counts),
        (catalog::has_function(c"_refusals", &[]), refusals),
        (catalog::has_objects_of_today(), names),
        (has_notify_me(), NOTIFY_ME),
        (ended_at, ended),
        (has_lease_declare(), include_str!("../../sql/query/privilege/monitor_declared.sql")),
    ];
    grant(&statements, role)
}
