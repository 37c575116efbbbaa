//! Cursors: how far a group has come in each partition.
//!
//! A commit of a cursor is a fenced write in the caller's transaction: it stands with the caller's work or not at all, and only under the
//! partition's present fence. So the owner to come reads a cursor that includes all that the owner before has committed, whose later
//! commits are refused. A cursor only goes forward.
//!
//! Positions are counted from 1; a cursor at 0 has seen nothing. Acknowledgements may come in any order: those beyond the cursor are kept
//! as ranges, and the cursor follows the contiguous part.

use crate::call::{Call, enter, text_arg};
use crate::declaration::{self, Kind, partition_arg, require_partition};
use crate::error::{Error, Result};
use crate::fence;
use crate::spi::{self, Statement, Value};
use crate::table::{Flight, Key, Locked, Sight, Table};
use crate::text::Text;
use pgrx::pg_sys::{INT4OID, INT8OID, TEXTOID};
use pgrx::prelude::*;

static COMMIT: Statement =
    Statement::tidies(include_str!("../sql/query/cursor/commit.sql"), &[TEXTOID, INT4OID, INT8OID, INT8OID]);
static ACK: Statement =
    Statement::tidies(include_str!("../sql/query/cursor/ack.sql"), &[TEXTOID, INT4OID, INT8OID, INT8OID, INT8OID]);
static POSITION: Statement = Statement::reads(include_str!("../sql/query/cursor/position.sql"), &[TEXTOID, INT4OID]);
static HEAD: Statement =
    Statement::tidies(include_str!("../sql/query/cursor/head.sql"), &[TEXTOID, INT4OID, INT8OID, INT4OID]);
static FIRST_HEAD: Statement =
    Statement::tidies(include_str!("../sql/query/cursor/first_head.sql"), &[TEXTOID, INT4OID, INT8OID, INT4OID]);
static RESIZE: Statement =
    Statement::writes(include_str!("../sql/query/cursor/resize.sql"), &[TEXTOID, INT4OID, INT4OID]);
static DROP: Statement = Statement::writes(include_str!("../sql/query/cursor/drop.sql"), &[TEXTOID]);
static DROP_HEADS: Statement = Statement::writes(include_str!("../sql/query/cursor/drop_heads.sql"), &[TEXTOID]);

/// Ranges of acknowledged positions beyond a cursor: an acknowledgement out of order rewrites them all.
const MAX_RANGES: i64 = 1_000;

fn position_arg(position: Option<i64>) -> Result<i64> {
    let position = position.ok_or(Error::Null("position"))?;
    if (1..i64::MAX).contains(&position) { Ok(position) } else { Err(Error::Position(position).into()) }
}

/// The arguments of a fenced call, whose fence holds from here to the end of the transaction.
fn fenced(
    verb: &'static str,
    group: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<(Call, String, i32, i64, i64)> {
    let shared = enter()?;
    spi::require_writes(verb)?;
    let group = text_arg("group_name", group)?;
    let (partition, position) = (partition.ok_or(Error::Null("partition"))?, position_arg(position)?);
    let fence = fence.ok_or(Error::Null("fence"))?;
    let call = Call::open(shared)?;
    fence::check(&call, &group, Some(partition), fence)?;
    Ok((call, group, partition, position, fence))
}

/// Moves a cursor that is at `from` or beyond, if nothing is acknowledged out of order. That is the common case, for a fraction of what
/// a statement costs.
fn advance(group: &str, partition: i32, position: i64, fence: i64, from: i64) -> Result<bool> {
    let cursors = Table::open(c"_cursors", c"_cursors_pkey");
    let find = || {
        cursors.scan(Sight::Latest, &[Key::Text(group), Key::Int(partition)], |row, _| {
            Some((row.get::<i64>(3)?, row.has_no_range(4)))
        })
    };
    // Of any other the executor knows more.
    let plain = cursors.is_plain();
    while plain && let Some((at, true)) = find() {
        if !(from..position).contains(&at) {
            break;
        }
        // SAFETY: no preconditions
        let now = unsafe { pg_sys::GetCurrentTimestamp() };
        if cursors.update(&[(3, Some(position.into())), (5, Some(fence.into())), (6, Some(now.into()))]) {
            return Ok(true);
        }
        pgrx::check_for_interrupts!();
    }
    // Semaphores have fences too, but no cursors.
    require_partition(group, partition).map(|()| false)
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_commit(
    group_name: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<bool> {
    let (call, group, partition, position, fence) = fenced("cursor_commit()", group_name, partition, position, fence)?;
    if advance(&group, partition, position, fence, 0)? {
        return Ok(true);
    }
    let values = vec![Value::Text(&group), Value::Int(partition), Value::Long(position), Value::Long(fence)];
    Ok(!call.db().run(&COMMIT, values, |_| ()).is_empty())
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_ack(
    group_name: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<i64> {
    let (call, group, partition, position, fence) = fenced("cursor_ack()", group_name, partition, position, fence)?;
    if advance(&group, partition, position, fence, position - 1)? {
        return Ok(position);
    }
    let values = vec![
        Value::Text(&group),
        Value::Int(partition),
        Value::Long(position),
        Value::Long(fence),
        Value::Long(MAX_RANGES),
    ];
    match call.db().run(&ACK, values, |row| row.long(1)).pop() {
        Some(cursor) => Ok(cursor),
        None => Err(Error::AcksFull { group, partition, most: MAX_RANGES }.into()),
    }
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_position(group_name: Option<Text>, partition: Option<i32>) -> Result<i64> {
    let shared = enter()?;
    let group = text_arg("group_name", group_name)?;
    let partition = partition_arg(&group, partition)?;
    let values = vec![Value::Text(&group), Value::Int(partition)];
    Ok(Call::open(shared)?.db().run(&POSITION, values, |row| row.long(1)).pop().unwrap_or(0))
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_head(group_name: Option<Text>, partition: Option<i32>, position: Option<i64>) -> Result<bool> {
    let shared = enter()?;
    spi::require_writes("cursor_head()")?;
    let group = text_arg("group_name", group_name)?;
    let partition = partition_arg(&group, partition)?;
    let position = position_arg(position)?;
    let call = Call::open(shared)?;
    // A report waits for nobody: one that finds another being committed is left out. One for another number of partitions means nothing.
    let partitions = declaration::of_kind(&group, Kind::Group)?.slots;
    let heads = Table::open(c"_heads", c"_heads_pkey");
    let (mut known, mut in_flight) = (None, false);
    heads.scan(Sight::Dirty, &[Key::Text(&group), Key::Int(partition)], |row, flight| {
        in_flight |= flight != Flight::None;
        known = Some((row.get::<i64>(3).filter(|_| row.get(4) == Some(partitions)).unwrap_or(0), row.tid()));
        None::<()>
    });
    let statement = match known {
        _ if in_flight => return Ok(false),
        Some((newest, _)) if newest >= position => return Ok(false),
        Some((_, tid)) if heads.lock(tid, false) != Locked::Mine => return Ok(false),
        Some(_) => &HEAD,
        None => &FIRST_HEAD,
    };
    let values = vec![Value::Text(&group), Value::Int(partition), Value::Long(position), Value::Int(partitions)];
    Ok(call.db().execute(statement, values) > 0)
}

/// Every cursor of a group that gets another number of partitions begins at the least position of them all: nothing is skipped.
pub fn resize(call: &Call, group: &str, before: i32, partitions: i32) {
    call.db().execute(&RESIZE, vec![Value::Text(group), Value::Int(before), Value::Int(partitions)]);
}

/// Forgets how far a group has come, and what has been reported of it.
pub fn drop_all(call: &Call, group: &str) -> Result<()> {
    let heads = Table::open(c"_heads", c"_heads_pkey");
    // A report may be a part of a transaction that stays open.
    declaration::patiently(group, || {
        let mut reports = Vec::new();
        heads.scan(Sight::Latest, &[Key::Text(group)], |row, _| {
            reports.push(row.tid());
            None::<()>
        });
        Ok(reports.into_iter().all(|report| heads.lock(report, false) == Locked::Mine).then_some(()))
    })?;
    for statement in [&DROP, &DROP_HEADS] {
        call.db().execute(statement, vec![Value::Text(group)]);
    }
    Ok(())
}
