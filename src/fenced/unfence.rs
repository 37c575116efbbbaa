//! Drops the triggers of a fenced table.

use super::{DROP, Member, STATEMENTS, lock_owned, tree};
use crate::base::error::{Error, Result};
use crate::call::Given;
use crate::pg::oids::Class;
use crate::pg::spi;
use pgrx::pg_sys;
use pgrx::prelude::*;

#[pg_extern(schema = "eskit_lease")]
fn table_unfence(target: Option<Class>, missing_ok: default!(Option<bool>, "false")) -> Result<bool> {
    spi::require_writes("table_unfence()")?;
    let Class(table) = target.given("target")?;
    let missing_ok = missing_ok.given("missing_ok")?;
    lock_owned(table, pg_sys::AccessExclusiveLock)?;
    let members = tree(table, "", None);
    let Some((top, partitions)) = members.split_first() else { return Err(Error::NoTable(table.to_u32()).into()) };
    let removed = remove(top, partitions);
    if removed || missing_ok { Ok(removed) } else { Err(Error::NotFenced { table: top.name.clone() }.into()) }
}

/// Serves the declaration of versions up to 0.2.0.
#[pg_extern(sql = false)]
pub fn unfence_table(target: Option<Class>) -> Result<bool> {
    table_unfence(target, Some(true))
}

/// Drops the triggers that fence a table and its partitions. Returns whether it dropped any.
fn remove(top: &Member, partitions: &[Member]) -> bool {
    let mut removed = !top.triggers.is_empty();
    for found in &top.triggers {
        top.run(DROP, found.name, None); // PostgreSQL refuses to drop one of the parent's, with an error
    }
    // Triggers of partitions that are fenced on their own stay.
    let alone = |member: &&Member| {
        member.found(STATEMENTS.name).is_some_and(|found| !found.inherited && found.arguments.is_some())
    };
    for member in partitions.iter().filter(|member| !alone(member)) {
        removed |= member.drop_where(|found| found.name != STATEMENTS.name);
    }
    removed
}
