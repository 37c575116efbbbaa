//! Who is to own each partition: a row for each that has been asked for. Only a transaction that has locked the group
//! writes them.
//!
//! No index has what changes in them, and pages are left half empty, so that a change adds to no index (a HOT update).
//! What an old snapshot keeps of them is passed over: a partition with many versions is read on its own, from the last
//! of them.

use super::state::{Partition, State};
use crate::call::Call;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Sight, Stand, Table, Tuple};
use pgrx::Uuid;
use pgrx::pg_sys::{INT4ARRAYOID, INT8ARRAYOID, INT8OID, TEXTOID, UUIDARRAYOID, UUIDOID};
use std::collections::HashMap;

static WRITE: Statement = Statement::writes(
    include_str!("../../sql/query/group/targets.sql"),
    &[TEXTOID, INT4ARRAYOID, UUIDARRAYOID, INT8ARRAYOID, INT8ARRAYOID, INT8OID],
);
static INHERIT: Statement =
    Statement::writes(include_str!("../../sql/query/group/inherit_targets.sql"), &[TEXTOID, UUIDOID, UUIDOID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/group/drop_partitions.sql"), &[TEXTOID]);

const PARTITION: usize = 2;
const TARGET: usize = 3;
const REVOKING: usize = 4;
const REVOKE_AT: usize = 5;
const BOOT_ID: usize = 6;

/// What is written of a partition.
pub struct Row {
    pub partition: i32,
    pub target: Option<Uuid>,
    /// The fence whose owner has been asked to release.
    pub revoking: Option<i64>,
    /// Until when, in microseconds of the clock of the shared memory of `boot_id`.
    pub revoke_at: i64,
    pub boot_id: i64,
}

impl Row {
    fn read(row: &Tuple) -> Row {
        Row {
            partition: row.get(PARTITION).unwrap_or(-1),
            target: row.get(TARGET),
            revoking: row.get(REVOKING),
            revoke_at: row.get(REVOKE_AT).unwrap_or(0),
            boot_id: row.get(BOOT_ID).unwrap_or(0),
        }
    }
}

fn table() -> Table {
    Table::open(c"_partitions", c"_partitions_pkey")
}

/// The row of a partition.
pub fn of(group: &str, partition: i32) -> Option<Row> {
    table().find(Sight::Latest, &[Key::Text(group), Key::Int(partition)], |row, _| Some(Row::read(row)))
}

/// Who is to own some partitions, of those that have a target.
pub fn of_partitions(group: &str, partitions: impl Iterator<Item = i32>) -> HashMap<i32, Uuid> {
    partitions.filter_map(|partition| Some((partition, of(group, partition)?.target?))).collect()
}

/// Shows the rows of a group's partitions; a row may be shown twice.
pub fn each(group: &str, mut visit: impl FnMut(Row)) {
    let (table, mut from) = (table(), Some(0));
    while let Some(first) = from.take() {
        let key = [Key::Text(group), Key::IntFrom(first)];
        let mut walk = table.walk_versions(Sight::Latest, &key);
        let stale = loop {
            match walk.step() {
                Stand::Row(_) => visit(Row::read(&table.row())),
                Stand::Stale => break table.row().get::<i32>(PARTITION),
                Stand::End => break None,
            }
        };
        drop(walk);
        if let Some(partition) = stale {
            table.find(Sight::Latest, &[Key::Text(group), Key::Int(partition)], |row, _| {
                visit(Row::read(row));
                Some(())
            });
            from = partition.checked_add(1);
        }
    }
}

/// Writes the targets and revocations of some partitions. The caller has locked the group.
pub fn write(call: &Call, state: &State, partitions: &[i32]) {
    if partitions.is_empty() {
        return;
    }
    let known = || partitions.iter().map(|partition| &state.partitions[*partition as usize]);
    let nil = Uuid::from_bytes([0; 16]);
    let targets: Vec<Uuid> = known().map(|known| known.target.unwrap_or(nil)).collect();
    let fences: Vec<i64> = known().map(|known| known.revoking.map_or(0, |(fence, _)| fence)).collect();
    let until: Vec<i64> = known().map(|known| known.revoking.map_or(0, |(_, at)| at.cast_signed())).collect();
    let values = vec![
        Value::Text(&state.name),
        Value::Ints(partitions),
        Value::Uuids(&targets),
        Value::Longs(&fences),
        Value::Longs(&until),
        Value::Long(call.shared.boot_id()),
    ];
    let (table, boot_id) = (table(), call.shared.boot_id());
    let by_place = table.is_plain() && table.has_columns(BOOT_ID);
    let written = || {
        partitions.iter().zip(known()).map(|(partition, known)| put(&table, &state.name, *partition, known, boot_id))
    };
    call.written(if by_place { written().sum() } else { None }, &WRITE, values);
}

/// Writes the row of one partition of a table that is plain.
fn put(table: &Table, group: &str, partition: i32, known: &Partition, boot_id: i64) -> Option<u64> {
    let columns = [
        (TARGET, known.target.and_then(|target| Value::Uuid(target).datum())),
        (REVOKING, known.revoking.map(|(fence, _)| fence.into())),
        (REVOKE_AT, known.revoking.map(|(_, at)| at.cast_signed().into())),
        (BOOT_ID, Some(boot_id.into())),
    ];
    let change = |_: &Tuple| Some(columns.iter().map(|(column, value)| (*column as i32, *value)).collect());
    match table.update_rows(&[Key::Text(group), Key::Int(partition)], change)? {
        0 => {
            let key = [Value::Text(group).datum(), Some(partition.into())];
            let row: Vec<_> = key.into_iter().chain(columns.map(|(_, value)| value)).collect();
            table.try_insert(&row).then_some(1)
        }
        rows => Some(rows),
    }
}

/// Gives what a session is to own to its successor. The caller has locked the group.
pub fn inherit(call: &Call, group: &str, old: Uuid, new: Uuid) {
    let (table, mut mine) = (table(), Vec::new());
    each(group, |row| mine.extend(Some(row.partition).filter(|_| row.target == Some(old))));
    mine.dedup();
    let change = |_: &Tuple| Some(vec![(TARGET as i32, Value::Uuid(new).datum())]);
    let give = |partition: i32| table.update_rows(&[Key::Text(group), Key::Int(partition)], change);
    let passed_on = mine.into_iter().map(give).sum();
    call.written(passed_on, &INHERIT, vec![Value::Text(group), Value::Uuid(old), Value::Uuid(new)]);
}

/// Forgets who is to own the partitions. The caller has locked the group.
pub fn drop_all(call: &Call, group: &str) {
    call.written(table().delete_rows(&[Key::Text(group)]), &DROP, vec![Value::Text(group)]);
}
