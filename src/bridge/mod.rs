//! Bridges: a resource whose holders and the workers of an older kind keep each other out, so that workers that hold
//! the lock of the old kind and workers that hold the lease may run side by side while one replaces the other. There
//! are two old kinds:
//!
//! * [`advisory`]: who works holds an advisory lock of one bigint, as `pg_advisory_lock` and its like take it.
//! * [`row`]: who works is the owner of a row until some time, as two of its columns say.
//!
//! What follows is told of the advisory lock; a row differs in that it is not lost when the worker is, and that nobody
//! is seen to wait for it.
//!
//! An old worker works while it holds the lock exclusively. On the side of the lease the same lock is held in share
//! mode, twice over:
//!
//! * **By the worker, for as long as the lease lives** (see [`tend`]). It alone gives the lease to others, and only
//!   while it has the lock. Whoever asks for a free one gets a place in line, or is told `bridged`; a release and a
//!   take-over leave it to the worker. So a lease is granted when no old worker works, and none begins while it is
//!   held.
//! * **By each fenced transaction, to its end** ([`cross`]). It is had before anything is judged, without waiting, or
//!   55P03 is raised. So what is written under a fence and what is written under the lock never overlap, whatever
//!   becomes of the worker.
//!
//! The lease is a row and the lock a process's, so one may be without the other, and an old worker at work under a
//! lease that lives:
//!
//! | what happens                | what becomes of the lock                         | what becomes of the lease                         |
//! |-----------------------------|--------------------------------------------------|---------------------------------------------------|
//! | its holder lets go, or dies | let go by the worker, unless somebody is in line | free                                              |
//! | the worker or the server ends | free, until another worker has it back: a moment | stays with its holder, who checks in vain (55P03) |
//! | an old worker was faster    | the old one's; the worker tries again and again  | the same                                          |
//! | an old worker waits for it  | let go by the worker: it is the old one's next   | the same                                          |
//! | the worker has it back      | the worker's                                     | stays with its holder, under a new fence          |
//! | a check is prepared         | kept by the prepared transaction too, to its end | stays with its holder                             |
//!
//! *Under a new fence*, because the old worker was an owner in between: what rests on data from before that must not be
//! written. A check needs its grant to be visible to what the caller reads (see [`crate::lease::fence`]), and a fence
//! that is granted anew says so. Until then none may pass, so the worker has a guard of the name
//! ([`Guard::Bridge`](crate::pg::guard::Guard::Bridge)) from when the lease has a fence of its own time to when it lets
//! go. A check has the lock first and looks for the guard then: if it is there, the worker has had the lock since the
//! grant, and the check has it from now on.
//!
//! *An old worker waits* is what `pg_advisory_lock` does where `pg_try_advisory_lock` would be refused. PostgreSQL lets
//! nobody share a lock past one who waits for it exclusively, so from then on no check can pass. If the worker kept the
//! lock, neither side would get on. Therefore whoever waits on the old side is next, in the middle of a lease too: it
//! has the lock once the transactions that are fenced have ended. Where several resources have one lock, all let go.

pub mod tend;

mod advisory;
mod row;
mod target;

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, enter, text_arg};
use crate::lease::declaration::{self, Kind};
use crate::lease::kind::Rules;
use crate::pg::catalog;
use crate::pg::oids::Class;
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::user::Shut;
use crate::pg::table::{Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{INT4OID, INT8OID, OIDOID, TEXTOID};
use pgrx::prelude::*;
use target::Target;

static CREATE: Statement = Statement::writes(
    include_str!("../../sql/query/bridge/create.sql"),
    &[TEXTOID, INT8OID, OIDOID, TEXTOID, TEXTOID, TEXTOID],
);
static OF_ROW: Statement = Statement::reads(include_str!("../../sql/query/bridge/of_row.sql"), &[OIDOID, TEXTOID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/bridge/drop.sql"), &[TEXTOID]);
static PAGE: Statement = Statement::reads(include_str!("../../sql/query/bridge/page.sql"), &[TEXTOID, INT4OID]);

/// What a bridge leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    /// The advisory lock of this key.
    Lock(i64),
    Row(Target),
}

/// Why a check cannot pass, and what is to be done.
struct Closed {
    why: String,
    hint: &'static str,
}

fn table() -> Table {
    Table::open(c"_bridges", c"_bridges_pkey")
}

/// Whether this database may have bridges; version 0.1.0 had none.
pub fn may_be() -> bool {
    catalog::relation(c"_bridges") != pg_sys::Oid::INVALID
}

impl Side {
    fn read(row: &Tuple) -> Option<Side> {
        if let Some(key) = row.get(2) {
            return Some(Side::Lock(key));
        }
        let text = |column| row.get::<Text>(column).map(|text| text.0);
        let (table, key) = (row.get(3)?, text(4)?);
        Some(Side::Row(Target { table, key, owner_column: text(5)?, until_column: text(6)? }))
    }

    /// Of a resource.
    fn of(resource: &str) -> Option<Side> {
        table().scan(Sight::Latest, &[Key::Text(resource)], |row, _| Side::read(row))
    }
}

/// Notes why the row of a bridge cannot be kept, or that it can. False if somebody has the bridge in hand.
fn note(resource: &str, trouble: Option<&str>) -> bool {
    let (table, column) = (table(), 7);
    let noted = table.scan(Sight::Latest, &[Key::Text(resource)], |row, _| Some(row.get::<Text>(column)));
    // No constraint of the table is about this column.
    let change = || table.try_update(&[(column as i32, Value::MaybeText(trouble).datum())]) == Locked::Mine;
    noted.is_none_or(|noted| noted.as_deref() == trouble || change())
}

fn is_full() -> bool {
    let (table, mut count) = (table(), 0);
    let mut enough = || {
        count += 1;
        (count == limits::MAX_BRIDGES).then_some(())
    };
    table.entries(&[], limits::MAX_BRIDGES) == limits::MAX_BRIDGES
        && table.scan(Sight::Latest, &[], |_, _| enough()).is_some()
}

/// The rules of names that are bridges.
pub struct OfBridges;

impl Rules for OfBridges {
    fn cross(&self, resource: &str, fence: i64) -> Result<()> {
        cross(resource, fence)
    }

    fn may_grant(&self, resource: &str) -> bool {
        tend::may_grant(resource)
    }
}

/// Holds what a bridge leads to, to the end of the transaction; refused unless the worker has had it since the grant.
fn cross(resource: &str, fence: i64) -> Result<()> {
    let Some(side) = Side::of(resource) else { return Ok(()) };
    let (to, crossed) = match &side {
        Side::Lock(key) => (format!("advisory lock {key}"), advisory::cross(resource, *key)),
        Side::Row(target) => (target.told(), row::cross(resource, fence, target)),
    };
    let closed = |Closed { why, hint }| Error::BridgeClosed { resource: resource.to_owned(), to, why, hint };
    crossed.map_err(|refused| closed(refused).into())
}

/// The bridges, in order, page by page.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_create(resource: Option<Text>, lock_key: Option<i64>) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("bridge_create()")?;
    let resource = text_arg("resource", resource)?;
    let lock_key = lock_key.ok_or(Error::Null("lock_key"))?;
    create(&Call::open(shared)?, &resource, &Side::Lock(lock_key))
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_create_row(
    resource: Option<Text>,
    target: Option<Class>,
    key: Option<Text>,
    owner_column: Option<Text>,
    until_column: Option<Text>,
) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("bridge_create_row()")?;
    let resource = text_arg("resource", resource)?;
    let Class(table) = target.ok_or(Error::Null("target"))?;
    let text = |what, text: Option<Text>| text.map(|text| text.0).ok_or(Error::Null(what));
    let (key, owner_column) = (text("key", key)?, text("owner_column", owner_column)?);
    let until_column = text("until_column", until_column)?;
    catalog::require_owner(table)?;
    let call = Call::open(shared)?;
    let (target, without_time_zone) = require_row(&call, &resource, Target { table, key, owner_column, until_column })?;
    let rows = vec![Value::Oid(table.to_u32()), Value::Text(&target.key)];
    if let Some(other) = call.db().run(&OF_ROW, rows, |row| row.text(1)).into_iter().next() {
        return Err(Error::BridgedAlready { to: target.told(), resource: other }.into());
    }
    let until_column = target.until_column.clone();
    create(&call, &resource, &Side::Row(target))?;
    if without_time_zone {
        ErrorReport::from(Error::ReadAsUtc { column: until_column }).report(pgrx::PgLogLevel::WARNING);
    }
    Ok(())
}

/// Refuses a row that cannot be bridged to; gives it with its key as the type of that writes it, and whether its time
/// is of no time zone.
fn require_row(call: &Call, resource: &str, target: Target) -> Result<(Target, bool)> {
    let id = target.table;
    let table = || catalog::table_name(id).unwrap_or_default();
    let refused = |shut| match shut {
        Shut::Busy => Error::TableLocked { table: table() },
        Shut::NoColumn(column) => Error::NoColumn { table: table(), column },
        Shut::Unfit(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "Keep the columns of the lease in a table of their own: an ordinary one, with types that can be bridged to.",
        },
        Shut::Unplain(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "The row is written by its place, without triggers and the like: take away what is in the way, or keep the columns of the lease in a table of their own.",
        },
        Shut::Narrow(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "Make the column longer, or give the bridge a shorter name.",
        },
    };
    let row = target.open(pg_sys::RowExclusiveLock).map_err(refused)?;
    row.require_fit(call).and_then(|()| row.require_room(row::marker_length(resource))).map_err(refused)?;
    let without_time_zone = row.is_without_time_zone();
    let key = target::canonical(row.key_type().map_err(refused)?, &target.key);
    drop(row);
    let target = Target { key, ..target };
    match target.open(pg_sys::RowExclusiveLock).and_then(|row| row.find()).map_err(refused)? {
        Some(_) => Ok((target, without_time_zone)),
        None => Err(Error::NoRow { table: table(), key: target.key }.into()),
    }
}

fn create(call: &Call, resource: &str, side: &Side) -> Result<()> {
    if is_full() {
        return Err(Error::BridgesFull.into());
    }
    declaration::declare(call, resource, Kind::Bridge, 1)?;
    let mut values = vec![Value::Text(resource)];
    values.extend(match side {
        Side::Lock(key) => [Value::Long(*key), Value::Null, Value::Null, Value::Null, Value::Null],
        Side::Row(row) => [
            Value::Null,
            Value::Oid(row.table.to_u32()),
            Value::Text(&row.key),
            Value::Text(&row.owner_column),
            Value::Text(&row.until_column),
        ],
    });
    call.db().execute(&CREATE, values);
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_drop(resource: Option<Text>) -> Result<bool> {
    let shared = enter()?;
    spi::require_writes("bridge_drop()")?;
    let resource = text_arg("resource", resource)?;
    let call = Call::open(shared)?;
    if declaration::of(&resource).is_none() {
        return Ok(false);
    }
    declaration::lock_owned(&call, &resource, Kind::Bridge)?;
    declaration::undeclare(&call, &resource, Kind::Bridge)?;
    call.db().execute(&DROP, vec![Value::Text(&resource)]);
    // The worker may still have the lock. A row it leaves to its time.
    call.seam().judge(&resource);
    Ok(true)
}
