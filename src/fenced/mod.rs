//! Fenced tables: only transactions that have passed the check of a fence may write them, whatever their client.
//!
//! Files, low to high: trigger, mod, unfence.
//!
//! `table_fence` only makes triggers, as the table's owner might. The resource is the argument of the triggers. So the
//! table itself says what fences it: a dump contains that, a restore brings it back after the rows, and it is dropped
//! with the table. The triggers fire always, so `session_replication_role` makes no difference. Their check is in
//! [`trigger`].
//!
//! | form                               | triggers                                                                |
//! |------------------------------------|-------------------------------------------------------------------------|
//! | a table                            | one, after each statement                                               |
//! | a table fenced by a column that tells a partition of a group | one after each kind of statement, with the rows that it has written (a transition table serves one event); and one that refuses TRUNCATE |
//! | a partitioned table, a partition   | one after each row, which PostgreSQL gives to all partitions, later ones too;
//!   and one after TRUNCATE for each partition that exists. Statement triggers would not do: only those of the table
//!   that a statement names fire |
//!
//! The triggers fire after the write, not before. So the check may be a part of the very statement that writes. The
//! checked row is as BEFORE triggers and generated columns have left it. A refusal rolls the write back.
//!
//! Row triggers are used only where nothing else works, because they make a write cost a tenth more. PostgreSQL queues
//! an event for each row and fetches the row again, whatever the trigger does. PostgreSQL versions whose transition
//! tables may lack rows need row triggers too ([`trigger::sees_all_rows`]).
//!
//! Tables that inherit from others, or that others inherit from, are refused: a statement on one of them writes rows of
//! another, and tables that come later would have no trigger.

mod trigger;
pub mod unfence;

use crate::base::error::{Error, Result};
use crate::call::{Given, enter_writing, text_arg};
use crate::lease::declaration::{self, Kind};
use crate::pg::oids::Class;
use crate::pg::spi::{self, Db, Row, Statement, Value};
use crate::pg::table::user;
use crate::pg::text::{Text, TextArray, from_server};
use crate::pg::{catalog, types};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, OIDOID, Oid, TEXTARRAYOID, TEXTOID};
use pgrx::prelude::*;
use trigger::integer;

static TREE: Statement =
    Statement::reads(include_str!("../../sql/query/fenced/tree.sql"), &[OIDOID, TEXTOID, TEXTOID, TEXTARRAYOID]);

const CREATE: &str = include_str!("../../sql/query/fenced/create.sql");
const ALWAYS: &str = include_str!("../../sql/query/fenced/always.sql");
const DROP: &str = include_str!("../../sql/query/fenced/drop.sql");

/// The wanted definition of a trigger.
struct Shape {
    name: &'static str,
    events: &'static str,
    /// The clause that says what the trigger sees of the rows.
    rows: &'static str,
    /// The level, time and events, as the catalog has them.
    bits: u32,
    old_table: bool,
    new_table: bool,
}

const WRITES: u32 = pg_sys::TRIGGER_TYPE_INSERT | pg_sys::TRIGGER_TYPE_UPDATE | pg_sys::TRIGGER_TYPE_DELETE;

const STATEMENTS: Shape = Shape {
    name: "eskit_lease_fence",
    events: "INSERT OR UPDATE OR DELETE OR TRUNCATE",
    rows: "FOR EACH STATEMENT",
    bits: WRITES | pg_sys::TRIGGER_TYPE_TRUNCATE,
    old_table: false,
    new_table: false,
};
const ROWS: Shape = Shape {
    events: "INSERT OR UPDATE OR DELETE",
    rows: "FOR EACH ROW",
    bits: WRITES | pg_sys::TRIGGER_TYPE_ROW,
    ..STATEMENTS
};
const INSERT: Shape = Shape {
    events: "INSERT",
    rows: "REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT",
    bits: pg_sys::TRIGGER_TYPE_INSERT,
    new_table: true,
    ..STATEMENTS
};
const UPDATE: Shape = Shape {
    name: "eskit_lease_fence_update",
    events: "UPDATE",
    rows: "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT",
    bits: pg_sys::TRIGGER_TYPE_UPDATE,
    old_table: true,
    new_table: true,
};
const DELETE: Shape = Shape {
    name: "eskit_lease_fence_delete",
    events: "DELETE",
    rows: "REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT",
    bits: pg_sys::TRIGGER_TYPE_DELETE,
    old_table: true,
    ..STATEMENTS
};
const TRUNCATE: Shape =
    Shape { name: "eskit_lease_fence_truncate", events: "TRUNCATE", bits: pg_sys::TRIGGER_TYPE_TRUNCATE, ..STATEMENTS };

/// The names of our triggers; sql/views.sql also lists them.
const NAMES: [&str; 4] = [STATEMENTS.name, UPDATE.name, DELETE.name, TRUNCATE.name];

impl Shape {
    fn is_of_rows(&self) -> bool {
        self.bits & pg_sys::TRIGGER_TYPE_ROW != 0
    }
}

/// A trigger that exists.
struct Found {
    name: &'static str,
    /// The resource, and the column that tells the partition; `None` if the trigger is not ours and only has the name.
    arguments: Option<Vec<String>>,
    bits: u32,
    /// Whether it has no condition and no list of columns, and is not a constraint.
    plain: bool,
    old_table: bool,
    new_table: bool,
    /// Whether it is a constraint trigger, which cannot be replaced.
    constraint: bool,
    /// Whether it comes from the partitioned table above.
    inherited: bool,
    always: bool,
}

impl Found {
    fn read(row: &Row, first: i32) -> Option<Found> {
        let is = |column| row.required(first + column);
        let name: Text = row.get(first)?;
        let bits: i32 = row.required(first + 2);
        let arguments = |arguments: Vec<u8>| {
            let arguments = arguments.strip_suffix(b"\0").unwrap_or(&arguments);
            arguments.split(|byte| *byte == 0).map(from_server).collect()
        };
        Some(Found {
            name: NAMES.into_iter().find(|known| *known == &*name)?,
            arguments: row.get(first + 1).map(arguments),
            bits: bits.cast_unsigned(),
            plain: is(3),
            old_table: is(4),
            new_table: is(5),
            constraint: is(6),
            inherited: is(7),
            always: is(8),
        })
    }

    fn is(&self, shape: &Shape) -> bool {
        self.arguments.is_some()
            && self.plain
            && !self.constraint
            && (self.bits, self.old_table, self.new_table) == (shape.bits, shape.old_table, shape.new_table)
    }
}

/// A table, or one of its partitions.
struct Member {
    /// The name, quoted for SQL.
    quoted: String,
    name: String,
    ours: bool,
    kind: String,
    is_partition: bool,
    inherits: bool,
    /// The wanted arguments of its triggers, as SQL text.
    wanted: String,
    /// The roles besides its owner that may replace its triggers.
    others: Vec<Option<Text>>,
    triggers: Vec<Found>,
}

impl Member {
    fn read(row: &Row) -> Member {
        let is = |column| row.required(column);
        Member {
            quoted: row.text(1),
            name: row.text(2),
            ours: is(3),
            kind: row.text(4),
            is_partition: is(5),
            inherits: is(6),
            wanted: row.text(7),
            others: row.get(8).map_or(Vec::new(), |TextArray(others)| others),
            triggers: Vec::new(),
        }
    }

    fn found(&self, name: &str) -> Option<&Found> {
        self.triggers.iter().find(|found| found.name == name)
    }

    /// Returns why the table cannot be fenced; `None` if it can.
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

    /// Returns the triggers that fence the table.
    fn shapes(&self, by_column: bool) -> &'static [&'static Shape] {
        match by_column {
            _ if self.kind == "p" || self.is_partition => &[&ROWS, &TRUNCATE],
            true if !trigger::sees_all_rows() => &[&ROWS, &TRUNCATE],
            true => &[&INSERT, &UPDATE, &DELETE, &TRUNCATE],
            false => &[&STATEMENTS],
        }
    }

    /// Runs a statement as the caller, with its `{}` parts filled in. The filled-in texts are quoted, and may contain
    /// braces.
    fn run(&self, statement: &str, name: &str, shape: Option<&Shape>) {
        let of = |part: fn(&Shape) -> &'static str| shape.map_or("", part);
        let filled = statement.split('{').map(|part| match part.split_once('}') {
            Some(("name", rest)) => [name, rest].concat(),
            Some(("events", rest)) => [of(|shape| shape.events), rest].concat(),
            Some(("rows", rest)) => [of(|shape| shape.rows), rest].concat(),
            Some(("table", rest)) => [&self.quoted, rest].concat(),
            Some(("arguments", rest)) => [&self.wanted, rest].concat(),
            _ => part.to_owned(),
        });
        spi::run_as_caller(&filled.collect::<String>());
    }

    /// Makes a trigger match its wanted definition. Returns whether anything had to be changed.
    fn ensure(&self, shape: &Shape) -> bool {
        let found = self.found(shape.name);
        let is = found.is_some_and(|found| found.is(shape));
        if !is {
            self.run(CREATE, shape.name, Some(shape));
        }
        let change = !is || found.is_none_or(|found| !found.always);
        if change {
            self.run(ALWAYS, shape.name, None);
        }
        change
    }

    /// Drops the triggers of this table that `wanted` chooses, except those that come from its parent. Returns whether
    /// it dropped any.
    fn drop_where(&self, wanted: impl Fn(&Found) -> bool) -> bool {
        let gone: Vec<_> = self.triggers.iter().filter(|found| !found.inherited && wanted(found)).collect();
        for found in &gone {
            self.run(DROP, found.name, None);
        }
        !gone.is_empty()
    }
}

/// Returns the table, which comes first, and its partitions.
fn tree(table: Oid, resource: &str, column: Option<&str>) -> Vec<Member> {
    let column = column.map_or(Value::Null, Value::Text);
    let values = vec![Value::Oid(table.to_u32()), Value::Text(resource), column, Value::Texts(NAMES.to_vec())];
    let rows = Db::open(catalog::home()).run(&TREE, values, |row| (Member::read(&row), Found::read(&row, 9)));
    let mut members: Vec<Member> = Vec::new();
    for (member, found) in rows {
        if members.last().is_none_or(|last| last.quoted != member.quoted) {
            members.push(member);
        }
        if let Some(last) = members.last_mut() {
            last.triggers.extend(found);
        }
    }
    members
}

fn lock_owned(table: Oid, mode: u32) -> Result<()> {
    catalog::require_owner(table)?;
    user::lock(table, mode);
    catalog::require_owner(table)
}

/// Refuses a column that cannot tell a partition.
fn require_partition_column(table: Oid, name: &str, column: &str) -> Result<()> {
    let (table_name, column_name) = (name.to_owned(), column.to_owned());
    let Some((is, computed)) = types::of_column(table, column) else {
        return Err(Error::NoColumn { table: table_name, column: column_name }.into());
    };
    let why = if computed {
        "It is a virtual generated column.".to_owned()
    } else if integer(is).is_none() {
        format!("It is of type {}, and not an integer.", types::type_name(is))
    } else {
        return Ok(());
    };
    Err(Error::PartitionColumn { table: table_name, column: column_name, why }.into())
}

/// Fences a table. The library keeps the name that versions up to 0.2.0 declare.
#[pg_extern(schema = "eskit_lease", name = "table_fence")]
pub fn fence_table(
    target: Option<Class>,
    resource: Option<Text>,
    partition_column: default!(Option<Text>, "NULL"),
) -> Result<bool> {
    enter_writing("table_fence()")?;
    let Class(table) = target.given("target")?;
    let resource = text_arg("resource", resource)?;
    let column = partition_column.as_deref();
    // This is the lock that CREATE TRIGGER takes. Writes that are open now come before the trigger, and later writes
    // meet it.
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
        // The member may be fenced by another resource, or alone, while it now must be fenced with the whole table.
        let mut known = member.triggers.iter().flat_map(|found| &found.arguments);
        if let Some(other) = known.find(|known| **known != wanted) {
            let (resource, column) = (other.first().cloned().unwrap_or_default(), other.get(1).cloned());
            return Err(Error::FencedAlready { table: member.name.clone(), resource, column }.into());
        }
    }
    let shapes = top.shapes(column.is_some());
    if top.triggers.iter().any(|found| found.inherited && !found.is(&ROWS)) {
        return Err(Error::FencedAbove(top.name.clone()).into());
    }
    let changed = make(&members, top, shapes);
    let mut others: Vec<&str> =
        members.iter().flat_map(|member| member.others.iter().flatten().map(|role| &**role)).collect();
    others.sort_unstable();
    others.dedup();
    if !others.is_empty() {
        let warning = Error::FenceReplaceable { table: top.name.clone(), by: others.join(", ") };
        ErrorReport::from(warning).report(pgrx::PgLogLevel::WARNING);
    }
    Ok(changed)
}

/// Makes all triggers match their wanted definitions. Returns whether anything had to be changed.
fn make(members: &[Member], top: &Member, shapes: &[&Shape]) -> bool {
    let mut changed = false;
    for member in members {
        // Drops constraint triggers, which cannot be replaced, and triggers of another form.
        let unwanted = |found: &Found| found.constraint || shapes.iter().all(|shape| shape.name != found.name);
        changed |= member.drop_where(unwanted);
    }
    for shape in shapes {
        if !shape.is_of_rows() {
            changed = members.iter().fold(changed, |changed, member| member.ensure(shape) || changed);
            continue;
        }
        // This replaces the triggers of partitions that are fenced alone, and triggers that others have put in their
        // place.
        let made = top.ensure(shape);
        let off = |member: &Member| member.found(shape.name).is_some_and(|found| !found.always);
        if !made && members.iter().any(off) {
            top.run(ALWAYS, shape.name, None); // the triggers of partitions follow it
            changed = true;
        }
        changed |= made;
    }
    changed
}
