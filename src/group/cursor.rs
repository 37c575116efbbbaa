//! Cursors: how far a group has come in each partition.
//!
//! A commit of a cursor is a fenced write in the caller's transaction. It stands or falls with the caller's work, and
//! it needs the partition's present fence. So the next owner reads a cursor that includes everything the former owner
//! has committed, and later commits of the former owner are refused. A cursor only goes forward.
//!
//! Several transactions may use one fence at a time. They take turns at the row of the cursor, but each has chosen its
//! events before its turn. So the second transaction must notice that the first has moved the cursor:
//!
//! * A transaction with one snapshot is refused (40001) if its snapshot does not include the last change of the row, as
//!   PostgreSQL refuses an UPDATE.
//! * Under READ COMMITTED the caller may name the position where it began. If the cursor is no longer there, the call
//!   is refused.
//!
//! Positions are counted from 1; a cursor at 0 has seen nothing. Acknowledgements may come in any order. Those beyond
//! the cursor are kept as ranges, and the cursor follows the contiguous part.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter, enter_writing, text_arg};
use crate::lease::declaration::{self, Kind, partition_arg, require_partition};
use crate::lease::fence;
use crate::pg::clock;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::transaction;
use crate::seam;
use pgrx::pg_sys::{INT4OID, INT8OID, TEXTOID};
use pgrx::prelude::*;

static FIRST: Statement =
    Statement::tidies(include_str!("../../sql/query/cursor/first.sql"), &[TEXTOID, INT4OID, INT8OID]);
static COMMIT: Statement =
    Statement::tidies(include_str!("../../sql/query/cursor/commit.sql"), &[TEXTOID, INT4OID, INT8OID, INT8OID]);
static ACK: Statement =
    Statement::tidies(include_str!("../../sql/query/cursor/ack.sql"), &[TEXTOID, INT4OID, INT8OID, INT8OID, INT8OID]);
static HEAD: Statement =
    Statement::tidies(include_str!("../../sql/query/cursor/head.sql"), &[TEXTOID, INT4OID, INT8OID, INT4OID]);
static FIRST_HEAD: Statement =
    Statement::tidies(include_str!("../../sql/query/cursor/first_head.sql"), &[TEXTOID, INT4OID, INT8OID, INT4OID]);
static RESIZE: Statement =
    Statement::writes(include_str!("../../sql/query/cursor/resize.sql"), &[TEXTOID, INT4OID, INT4OID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/cursor/drop.sql"), &[TEXTOID]);
static DROP_HEADS: Statement = Statement::writes(include_str!("../../sql/query/cursor/drop_heads.sql"), &[TEXTOID]);

fn position_arg(position: Option<i64>) -> Result<i64> {
    let position = position.given("position")?;
    if (1..i64::MAX).contains(&position) { Ok(position) } else { Err(Error::Position(position).into()) }
}

/// Reads the arguments of a fenced call and checks the fence, which then holds to the end of the transaction.
fn fenced(
    verb: &'static str,
    group: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<(Call, String, i32, i64, i64)> {
    let shared = enter_writing(verb)?;
    let group = text_arg("group_name", group)?;
    let (partition, position) = (partition.given("partition")?, position_arg(position)?);
    let fence = fence.given("fence")?;
    let call = Call::open(shared)?;
    fence::check(&call, &group, Some(partition), fence)?;
    Ok((call, group, partition, position, fence))
}

/// A move of a cursor.
struct Move<'a> {
    call: &'a Call,
    group: &'a str,
    partition: i32,
    position: i64,
    fence: i64,
    /// The cursor must be here, or beyond, to be moved without a statement.
    from: i64,
    /// The position at which the caller has read the cursor.
    expected: Option<i64>,
}

impl Move<'_> {
    /// Moves the cursor without a statement, if the table is plain and nothing is acknowledged out of order. That is
    /// the common case, and much cheaper. Otherwise locks the row, so that the caller's statement finds it unchanged,
    /// and returns false. Returns `None` if the cursor is already at the position, or beyond.
    fn run(&self) -> Result<Option<bool>> {
        let cursors = Table::open(c"_cursors", c"_cursors_pkey");
        // A table that is not plain needs the executor.
        let plain = cursors.is_plain();
        loop {
            pgrx::check_for_interrupts!();
            let Some((at, no_ranges)) = self.find(&cursors)? else {
                // Semaphores also have fences, but no cursors.
                require_partition(self.group, self.partition)?;
                if !self.is_strict() {
                    return Ok(Some(false));
                }
                let values = vec![Value::Text(self.group), Value::Int(self.partition), Value::Long(self.fence)];
                self.call.db().execute(&FIRST, values);
                continue;
            };
            if at >= self.position {
                return Ok(None);
            }
            if let Some(expected) = self.expected.filter(|expected| *expected != at) {
                let (group, partition) = (self.group.to_owned(), self.partition);
                return Err(Error::CursorElsewhere { group, partition, at, expected }.into());
            }
            debug_assert!(at < self.position, "a cursor goes forward");
            let done = if plain && no_ranges && at >= self.from {
                let now = clock::timestamp();
                let position = Some(self.position.into());
                cursors.update(&[(3, position), (5, Some(self.fence.into())), (6, Some(now.into()))]).then_some(true)
            } else {
                (cursors.lock(cursors.row().tid(), true) == Locked::Mine).then_some(false)
            };
            if done.is_some() {
                return Ok(done);
            }
        }
    }

    /// Returns where the cursor is, and whether no position beyond it is acknowledged.
    fn find(&self, cursors: &Table) -> Result<Option<(i64, bool)>> {
        let row = cursors.find(Sight::Latest, &[Key::Text(self.group), Key::Int(self.partition)], |row, _| {
            Some((row.required(3), row.has_no_range(4), row.is_seen()))
        });
        match row {
            Some((.., false)) => {
                Err(Error::CursorNewer { group: self.group.to_owned(), partition: self.partition }.into())
            }
            Some((at, no_ranges, true)) => Ok(Some((at, no_ranges))),
            None => Ok(None),
        }
    }

    /// Returns whether the move must notice another transaction that makes the row first.
    fn is_strict(&self) -> bool {
        self.expected.is_some() || transaction::keeps_its_snapshot()
    }
}

#[pg_extern(schema = "eskit_lease", name = "cursor_commit")]
fn cursor_commit_from(
    group_name: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
    expected: default!(Option<i64>, "NULL"),
) -> Result<bool> {
    let (call, group, partition, position, fence) = fenced("cursor_commit()", group_name, partition, position, fence)?;
    let values = vec![Value::Text(&group), Value::Int(partition), Value::Long(position), Value::Long(fence)];
    match (Move { call: &call, group: &group, partition, position, fence, from: 0, expected }).run()? {
        Some(true) => Ok(true),
        Some(false) => Ok(!call.db().run(&COMMIT, values, |_| ()).is_empty()),
        None => Ok(false),
    }
}

/// Keeps the signature that versions up to 0.2.0 declare.
#[pg_extern(sql = false)]
fn cursor_commit(
    group_name: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<bool> {
    cursor_commit_from(group_name, partition, position, fence, None)
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_ack(
    group_name: Option<Text>,
    partition: Option<i32>,
    position: Option<i64>,
    fence: Option<i64>,
) -> Result<i64> {
    let (call, group, partition, position, fence) = fenced("cursor_ack()", group_name, partition, position, fence)?;
    let (from, expected) = (position - 1, None);
    if (Move { call: &call, group: &group, partition, position, fence, from, expected }).run()? == Some(true) {
        return Ok(position);
    }
    let values = vec![
        Value::Text(&group),
        Value::Int(partition),
        Value::Long(position),
        Value::Long(fence),
        Value::Long(limits::MAX_RANGES),
    ];
    match call.db().run(&ACK, values, |row| row.long(1)).pop() {
        Some(cursor) => Ok(cursor),
        None => Err(Error::AcksFull { group, partition, most: limits::MAX_RANGES }.into()),
    }
}

#[pg_extern(schema = "eskit_lease")]
fn cursor_position(group_name: Option<Text>, partition: Option<i32>) -> Result<i64> {
    enter()?;
    let group = text_arg("group_name", group_name)?;
    let partition = partition_arg(&group, partition)?;
    let cursors = Table::open(c"_cursors", c"_cursors_pkey");
    let read = |row: &Tuple| Some((row.required(3), row.is_seen()));
    let found = cursors.find(Sight::Latest, &[Key::Text(&group), Key::Int(partition)], |row, _| read(row));
    match found {
        // A fenced transaction is about to read its next batch from here, but its snapshot is older than the cursor.
        Some((_, false)) if !seam::passes(&group, Some(partition)).0.is_empty() => {
            Err(Error::CursorNewer { group, partition }.into())
        }
        found => Ok(found.map_or(0, |(position, _)| position)),
    }
}

/// The symbol in the library keeps the name that versions up to 0.2.0 declare.
#[pg_extern(schema = "eskit_lease", name = "cursor_report_head")]
pub fn cursor_head(group_name: Option<Text>, partition: Option<i32>, position: Option<i64>) -> Result<bool> {
    let shared = enter_writing("cursor_report_head()")?;
    let group = text_arg("group_name", group_name)?;
    let partition = partition_arg(&group, partition)?;
    let position = position_arg(position)?;
    let call = Call::open(shared)?;
    // A report waits for no transaction: if another transaction is changing the row, the report is dropped. A stored
    // head for another number of partitions counts as 0.
    let partitions = declaration::of_kind(&group, Kind::Group)?.slots;
    let heads = Table::open(c"_heads", c"_heads_pkey");
    let (mut known, mut in_flight) = (None, false);
    heads.find(Sight::Dirty, &[Key::Text(&group), Key::Int(partition)], |row, flight| {
        in_flight = flight != Flight::None;
        let is_present = row.required::<i32>(4) == partitions;
        known = Some((if is_present { row.required(3) } else { 0 }, row.tid()));
        // A row without a change in flight is the only one of its key. A row with one already decides the answer.
        Some(())
    });
    let values = vec![Value::Text(&group), Value::Int(partition), Value::Long(position), Value::Int(partitions)];
    let written = match known {
        _ if in_flight => return Ok(false),
        Some((newest, _)) if newest >= position => return Ok(false),
        Some((_, tid)) if heads.lock(tid, false) != Locked::Mine => return Ok(false),
        Some(_) => {
            let now = clock::timestamp();
            let changes = [(3, Some(position.into())), (4, Some(partitions.into())), (5, Some(now.into()))];
            // The scan stands at the row that has just been locked.
            let by_place = heads.is_plain().then(|| u64::from(heads.update(&changes)));
            call.written(by_place, &HEAD, values)
        }
        None => call.db().execute(&FIRST_HEAD, values),
    };
    Ok(written > 0)
}

/// Moves every cursor of a resized group to the least position of all its cursors, so that no event is skipped.
pub fn resize(call: &Call, group: &str, before: i32, partitions: i32) {
    call.db().execute(&RESIZE, vec![Value::Text(group), Value::Int(before), Value::Int(partitions)]);
}

/// Deletes the cursors of a group and the heads that were reported.
pub fn drop_all(call: &Call, group: &str) -> Result<()> {
    let heads = Table::open(c"_heads", c"_heads_pkey");
    // A report may belong to a transaction that stays open, so its lock is only tried for a while.
    declaration::patiently(group, || {
        let mut reports = Vec::new();
        heads.scan(Sight::Latest, &[Key::Text(group)], |row, _| {
            reports.push(row.tid());
            None::<()>
        });
        Ok(reports.into_iter().all(|report| heads.lock(report, false) == Locked::Mine).then_some(()))
    })?;
    let (cursors, key) = (Table::open(c"_cursors", c"_cursors_pkey"), [Key::Text(group)]);
    call.written(cursors.delete_rows(&key), &DROP, vec![Value::Text(group)]);
    call.written(heads.delete_rows(&key), &DROP_HEADS, vec![Value::Text(group)]);
    Ok(())
}
