//! The targets of partitions, a row for each partition that has had one. Only a transaction that has locked the group
//! writes them.
//!
//! No index covers the columns that change, and pages are left half empty. So a change adds nothing to an index (a HOT
//! update). An old snapshot may keep many versions of a row. A read of all partitions stops at such a partition, reads
//! it alone, from its last version, and goes on behind it.

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

/// The row of a partition.
pub struct Row {
    pub partition: i32,
    pub target: Option<Uuid>,
    /// The fence whose owner must release, and its deadline: microseconds on the clock of the shared memory of
    /// `boot_id`.
    pub revoking: Option<(i64, i64)>,
    pub boot_id: i64,
}

impl Row {
    fn read(row: &Tuple) -> Row {
        Row {
            partition: row.required(PARTITION),
            target: row.get(TARGET),
            revoking: row.get(REVOKING).map(|fence| (fence, row.required(REVOKE_AT))),
            // Rows of versions before 0.3.0 have no `boot_id`. No start has the `boot_id` 0.
            boot_id: row.get(BOOT_ID).unwrap_or(0),
        }
    }
}

fn table() -> Table {
    Table::open(c"_partitions", c"_partitions_pkey")
}

/// Returns the row of a partition.
pub fn of(group: &str, partition: i32) -> Option<Row> {
    table().find(Sight::Latest, &[Key::Text(group), Key::Int(partition)], |row, _| Some(Row::read(row)))
}

/// Returns the targets of some partitions; a partition without a target is left out.
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
                Stand::Stale => break Some(table.row().required(PARTITION)),
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
pub fn write(call: &Call, group: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let nil = Uuid::from_bytes([0; 16]);
    let partitions: Vec<i32> = rows.iter().map(|row| row.partition).collect();
    let targets: Vec<Uuid> = rows.iter().map(|row| row.target.unwrap_or(nil)).collect();
    let fences: Vec<i64> = rows.iter().map(|row| row.revoking.map_or(0, |(fence, _)| fence)).collect();
    let until: Vec<i64> = rows.iter().map(|row| row.revoking.map_or(0, |(_, at)| at)).collect();
    let values = vec![
        Value::Text(group),
        Value::Ints(&partitions),
        Value::Uuids(&targets),
        Value::Longs(&fences),
        Value::Longs(&until),
        Value::Long(rows[0].boot_id),
    ];
    let table = table();
    let by_place = table.is_plain() && table.has_columns(BOOT_ID);
    let written = || rows.iter().map(|row| put(&table, group, row));
    call.written(if by_place { written().sum() } else { None }, &WRITE, values);
}

/// Writes the row of a group's partition by its ctid; the table [is plain](Table::is_plain).
fn put(table: &Table, group: &str, row: &Row) -> Option<u64> {
    let columns = [
        (TARGET, row.target.and_then(|target| Value::Uuid(target).datum())),
        (REVOKING, row.revoking.map(|(fence, _)| fence.into())),
        (REVOKE_AT, row.revoking.map(|(_, at)| at.into())),
        (BOOT_ID, Some(row.boot_id.into())),
    ];
    let change = |_: &Tuple| Some(columns.iter().map(|(column, value)| (*column as i32, *value)).collect());
    match table.update_rows(&[Key::Text(group), Key::Int(row.partition)], change)? {
        0 => {
            let key = [Value::Text(group).datum(), Some(row.partition.into())];
            let new: Vec<_> = key.into_iter().chain(columns.map(|(_, value)| value)).collect();
            table.try_insert(&new).then_some(1)
        }
        rows => Some(rows),
    }
}

/// Makes the successor of a session the target of its partitions. The caller has locked the group.
pub fn inherit(call: &Call, group: &str, old: Uuid, new: Uuid) {
    let (table, mut mine) = (table(), Vec::new());
    each(group, |row| mine.extend((row.target == Some(old)).then_some(row.partition)));
    mine.dedup();
    let change = |_: &Tuple| Some(vec![(TARGET as i32, Value::Uuid(new).datum())]);
    let give = |partition: i32| table.update_rows(&[Key::Text(group), Key::Int(partition)], change);
    let passed_on = mine.into_iter().map(give).sum();
    call.written(passed_on, &INHERIT, vec![Value::Text(group), Value::Uuid(old), Value::Uuid(new)]);
}

/// Deletes the targets of all partitions. The caller has locked the group.
pub fn drop_all(call: &Call, group: &str) {
    call.written(table().delete_rows(&[Key::Text(group)]), &DROP, vec![Value::Text(group)]);
}
