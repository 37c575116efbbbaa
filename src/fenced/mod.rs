//! Fenced tables: written only by transactions that have passed the check of a fence, whatever client they come from.
//!
//! [`fence_table`] makes triggers, as the table's owner might, and that is all: the resource is their argument, so what is fenced by what
//! is a part of the table, is dumped and restored with it (its rows first, then its triggers) and goes with it. They fire always, so
//! that `session_replication_role` makes no difference. What they ask is in [`trigger`].
//!
//! | form                               | triggers                                                                |
//! |------------------------------------|-------------------------------------------------------------------------|
//! | a table                            | one, after each statement                                               |
//! | a partitioned table, a partition   | one after each row, which PostgreSQL gives to all partitions, those to come too: no statement trigger fires for what is written to a partition by way of its parent, or the other way round; and one after TRUNCATE for each partition that there is |
//! | by a column that tells a partition of a group | after each row, which then is as all BEFORE triggers and generated columns have left it; and one that refuses TRUNCATE |
//!
//! After, and not before: so the check may be a part of the very statement that writes. What is refused then is rolled back with it.
//!
//! In inheritance, rows of one table are written by statements that name another, and no trigger could be made for the tables to come.
//! So such tables are refused.

mod trigger;

use crate::call::{enter, text_arg};
use crate::catalog;
use crate::declaration::{self, Kind};
use crate::error::{Error, Result};
use crate::oids::Class;
use crate::spi::{self, Db, Row, Statement, Value};
use crate::text::{Text, from_server, text_datum};
use pgrx::pg_sys::{self, OIDOID, Oid, TEXTOID};
use pgrx::prelude::*;
use std::ffi::CStr;
use trigger::integer;

static TREE: Statement = Statement::reads(include_str!("../../sql/query/fenced/tree.sql"), &[OIDOID, TEXTOID, TEXTOID]);

const CREATE: &str = include_str!("../../sql/query/fenced/create.sql");
const ALWAYS: &str = include_str!("../../sql/query/fenced/always.sql");
const DROP: &str = include_str!("../../sql/query/fenced/drop.sql");

/// A trigger that is there.
struct Found {
    /// The resource, and the column that tells the partition.
    arguments: Vec<String>,
    always: bool,
    /// Of the partitioned table above.
    inherited: bool,
}

/// A table, or a partition of it.
struct Member {
    /// Its name as SQL has it.
    quoted: String,
    name: String,
    ours: bool,
    kind: String,
    is_partition: bool,
    inherits: bool,
    writes: Option<Found>,
    truncate: Option<Found>,
    /// What the arguments are to be, as SQL has it.
    wanted: String,
}

impl Member {
    fn read(row: Row) -> Member {
        let is = |column| row.get(column).unwrap_or(false);
        let found = |column, inherited| {
            let arguments: Vec<u8> = row.get(column)?;
            let arguments = arguments.strip_suffix(b"\0").unwrap_or(&arguments).split(|byte| *byte == 0);
            Some(Found { arguments: arguments.map(from_server).collect(), always: is(column + 1), inherited })
        };
        Member {
            quoted: row.text(1),
            name: row.text(2),
            ours: is(3),
            kind: row.text(4),
            is_partition: is(6),
            inherits: is(7),
            writes: found(8, is(10)),
            truncate: found(11, false),
            wanted: row.text(13),
        }
    }

    /// Why it cannot be fenced.
    fn unfenceable(&self) -> Option<&'static str> {
        Some(match self.kind.as_str() {
            _ if self.ours => "It is the extension's own.",
            "r" if self.inherits => {
                "It takes part in inheritance: rows of one table are written by statements on another."
            }
            "r" | "p" => return None,
            "v" => "It is a view.",
            "m" => "It is a materialized view.",
            "f" => "It is a foreign table.",
            _ => "It is not a table.",
        })
    }

    /// Runs a statement as the caller. What is filled in is quoted, and may have braces of its own.
    fn run(&self, statement: &str, trigger: &str, events: &str, level: &str) {
        let filled = statement.split('{').map(|part| match part.split_once('}') {
            Some(("name", rest)) => [trigger, rest].concat(),
            Some(("events", rest)) => [events, rest].concat(),
            Some(("level", rest)) => [level, rest].concat(),
            Some(("table", rest)) => [&self.quoted, rest].concat(),
            Some(("arguments", rest)) => [&self.wanted, rest].concat(),
            _ => part.to_owned(),
        });
        spi::run_as_caller(&filled.collect::<String>());
    }

    /// Makes a trigger, or has it fire always. Whether there was anything to do.
    fn ensure(&self, found: Option<&Found>, trigger: &str, events: &str, level: &str) -> bool {
        if found.is_none() {
            self.run(CREATE, trigger, events, level);
        }
        let change = found.is_none_or(|found| !found.always);
        if change {
            self.run(ALWAYS, trigger, events, level);
        }
        change
    }
}

const WRITES: &str = "eskit_lease_fence";
const TRUNCATE: &str = "eskit_lease_fence_truncate";

/// The table, which comes first, and its partitions.
fn tree(table: Oid, resource: &str, column: Option<&str>) -> Vec<Member> {
    let column = column.map_or(Value::Null, Value::Text);
    Db::open(catalog::home()).run(&TREE, vec![Value::Oid(table.to_u32()), Value::Text(resource), column], Member::read)
}

#[cfg(feature = "pg15")]
unsafe fn is_owner(table: Oid, role: Oid) -> bool {
    // SAFETY: reads the catalog through its cache; raises for a table that is no more
    unsafe { pg_sys::pg_class_ownercheck(table, role) }
}

#[cfg(not(feature = "pg15"))]
unsafe fn is_owner(table: Oid, role: Oid) -> bool {
    // SAFETY: as above
    unsafe { pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, role) }
}

/// Refuses a table that is not the caller's, before it is locked and after.
fn require_owner(table: Oid) -> Result<()> {
    // SAFETY: reads the catalog through its cache; the name ends in NUL
    unsafe {
        let name = pg_sys::get_rel_name(table);
        if name.is_null() {
            return Err(Error::NoTable(table.to_u32()).into());
        }
        if !is_owner(table, pg_sys::GetUserId()) {
            let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(table));
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NOT_OWNER, kind, name);
        }
    }
    Ok(())
}

fn lock_owned(table: Oid, mode: u32) -> Result<()> {
    require_owner(table)?;
    // SAFETY: in a transaction
    unsafe { pg_sys::LockRelationOid(table, mode as pg_sys::LOCKMODE) };
    require_owner(table)
}

/// Refuses a column that cannot tell a partition.
fn require_partition_column(table: Oid, name: &str, column: &str) -> Result<()> {
    let (table_name, column_name) = (name.to_owned(), column.to_owned());
    // SAFETY: reads the catalog through its cache; text_to_cstring ends the name in NUL
    let (is, computed) = unsafe {
        let column = pg_sys::text_to_cstring(text_datum(column).cast_mut_ptr());
        let number = pg_sys::get_attnum(table, column);
        if number <= 0 {
            return Err(Error::NoColumn { table: table_name, column: column_name }.into());
        }
        let is = pg_sys::get_atttype(table, number);
        (is, pg_sys::get_attgenerated(table, number) as u8 == b'v')
    };
    let why = if computed {
        "It is a virtual generated column.".to_owned()
    } else if integer(is).is_none() {
        // SAFETY: as above
        let is = unsafe { from_server(CStr::from_ptr(pg_sys::format_type_be(is)).to_bytes()) };
        format!("It is of type {is}, and not an integer.")
    } else {
        return Ok(());
    };
    Err(Error::PartitionColumn { table: table_name, column: column_name, why }.into())
}

#[pg_extern(schema = "eskit_lease")]
fn fence_table(
    target: Option<Class>,
    resource: Option<Text>,
    partition_column: default!(Option<Text>, "NULL"),
) -> Result<bool> {
    enter()?;
    spi::require_writes("fence_table()")?;
    let Class(table) = target.ok_or(Error::Null("target"))?;
    let resource = text_arg("resource", resource)?;
    let column = partition_column.as_deref();
    // The lock that CREATE TRIGGER takes: who writes now has written before, and who writes later meets the trigger.
    lock_owned(table, pg_sys::ShareRowExclusiveLock)?;
    let members = tree(table, &resource, column);
    let Some(top) = members.first() else { return Err(Error::NoTable(table.to_u32()).into()) };
    for member in &members {
        if let Some(why) = member.unfenceable() {
            return Err(Error::Unfenceable { table: member.name.clone(), why }.into());
        }
    }
    if let Some(column) = column {
        declaration::of_kind(&resource, Kind::Group)?;
        require_partition_column(table, &top.name, column)?;
    }
    let wanted: Vec<&str> = std::iter::once(resource.as_str()).chain(column).collect();
    for member in &members {
        // By something else, or by itself where it is now to be with the whole.
        let known = [&member.writes, &member.truncate].into_iter().flatten();
        if let Some(other) = known.clone().find(|known| known.arguments != wanted) {
            let resource = other.arguments.first().cloned().unwrap_or_default();
            return Err(Error::FencedAlready { table: member.name.clone(), resource }.into());
        }
    }
    let by_rows = column.is_some() || top.kind == "p" || top.is_partition;
    let (events, level) = if by_rows {
        ("INSERT OR UPDATE OR DELETE", "ROW")
    } else {
        ("INSERT OR UPDATE OR DELETE OR TRUNCATE", "STATEMENT")
    };
    let mut changed = top.ensure(top.writes.as_ref(), WRITES, events, level);
    if by_rows {
        for member in &members {
            changed |= member.ensure(member.truncate.as_ref(), TRUNCATE, "TRUNCATE", "STATEMENT");
        }
    }
    Ok(changed)
}

#[pg_extern(schema = "eskit_lease")]
fn unfence_table(target: Option<Class>) -> Result<bool> {
    spi::require_writes("unfence_table()")?;
    let Class(table) = target.ok_or(Error::Null("target"))?;
    lock_owned(table, pg_sys::AccessExclusiveLock)?;
    let members = tree(table, "", None);
    let Some(top) = members.first() else { return Ok(false) };
    if top.writes.is_some() {
        top.run(DROP, WRITES, "", "");
    }
    // Those of partitions below that are fenced on their own stay.
    let theirs =
        |member: &&Member| member.writes.as_ref().is_none_or(|writes| writes.inherited) || member.quoted == top.quoted;
    let mut changed = top.writes.is_some();
    for member in members.iter().filter(theirs).filter(|member| member.truncate.is_some()) {
        member.run(DROP, TRUNCATE, "", "");
        changed = true;
    }
    Ok(changed)
}
