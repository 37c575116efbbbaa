//! Moves of items between their tables. The caller has locked the items. A row is written and deleted by its ctid,
//! which takes no predicate locks (see [`crate::pg::table`]). If an administrator has given one of the tables a trigger
//! or the like, a statement does the move.

use super::{ITEMS, LATER, column};
use crate::call::Call;
use crate::pg::clock;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Key, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::shmem::counters::Counter;
use crate::shmem::databases::Kept;
use pgrx::pg_sys::{Datum, INT4OID, INT8OID, TEXTOID};

static CLAIM_LATER: Statement = Statement::writes(
    include_str!("../../sql/query/item/claim_later.sql"),
    &[INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, INT8OID],
);
static RETRY: Statement = Statement::tidies(
    include_str!("../../sql/query/item/retry.sql"),
    &[INT4OID, INT4OID, INT8OID, INT8OID, TEXTOID, INT8OID],
);
static BURY: Statement =
    Statement::tidies(include_str!("../../sql/query/item/bury.sql"), &[INT4OID, INT4OID, INT8OID, INT8OID, TEXTOID]);
static REQUEUE: Statement =
    Statement::writes(include_str!("../../sql/query/item/requeue.sql"), &[INT8OID, INT4OID, INT8OID]);

static ADVANCE: Statement =
    Statement::tidies(include_str!("../../sql/query/item/advance.sql"), &[INT4OID, INT4OID, INT8OID, INT8OID]);
static ADVANCE_LATER: Statement = Statement::tidies(
    include_str!("../../sql/query/item/advance_later.sql"),
    &[INT4OID, INT4OID, INT8OID, INT8OID, INT8OID],
);

/// Where an item of `_items` is, and the fence of its claim.
#[derive(Clone, Copy)]
pub struct Claimed {
    pub queue: i32,
    pub partition: i32,
    pub place: i64,
    pub fence: i64,
}

/// The key, payload and attempt of an item, as a claim returns them.
pub type Given = (Option<Text>, Option<Jsonb>, i32);

type Columns = Vec<Option<Datum>>;

/// Moves the row of an index key to another table, with the columns that `new` returns. If `new` returns `None`, the
/// row is not the wanted one and stays. Returns false if a statement must do the move.
fn moved(from: &Table, key: &[Key], into: &Table, new: impl Fn(&Tuple) -> Option<Columns>) -> bool {
    if !from.is_plain() {
        return false;
    }
    // The insert comes first: it reads values that are stored outside of the row.
    let Some(columns) = from.scan(Sight::Latest, key, |row, _| Some(new(row))).flatten() else { return true };
    let written = into.try_insert(&columns);
    if written {
        from.try_delete();
    }
    written
}

fn claimed(row: &Tuple, of: Claimed) -> Option<()> {
    (row.required::<i64>(column::CLAIM) == of.fence).then_some(())
}

/// Claims a due item, which gets a place among the ready items.
pub fn claim(call: &Call, due: i64, id: i64, to: Claimed) -> Option<Given> {
    let (later, items) = (Table::open(LATER, c"_later_pkey"), Table::open(ITEMS, c"_items_pkey"));
    let Claimed { queue, partition, place, fence } = to;
    let key = [Key::Int(queue), Key::Int(partition), Key::Long(due), Key::Long(id)];
    let given = later
        .scan(Sight::Latest, &key, |row, _| Some((row.get(7), row.get(9), row.required::<i32>(5).saturating_add(1))))?;
    let new = |row: &Tuple| {
        let (attempt, place, fence) = (given.2, place.into(), fence.into());
        let mut columns = vec![Some(queue.into()), Some(partition.into()), Some(place), Some(id.into()), Some(fence)];
        columns.push(Some(attempt.into()));
        // added_at, key, error, payload
        columns.extend((6..=9).map(|column| row.get(column)));
        Some(columns)
    };
    if moved(&later, &key, &items, new) {
        spi::durably();
        return Some(given);
    }
    let values = [Value::Long(due), Value::Long(id), Value::Long(place), Value::Long(fence)];
    let values = [Value::Int(queue), Value::Int(partition)].into_iter().chain(values).collect();
    call.db().run(&CLAIM_LATER, values, |row| (row.get(1), row.get(2), row.int(3))).pop()
}

/// Moves an item to those that wait until they are due.
pub fn retry(call: &Call, item: Claimed, error: &str, due: i64) {
    let (items, later) = (Table::open(ITEMS, c"_items_pkey"), Table::open(LATER, c"_later_pkey"));
    let Claimed { queue, partition, place, fence } = item;
    let key = [Key::Int(queue), Key::Int(partition), Key::Long(place)];
    let new = |row: &Tuple| {
        claimed(row, item)?;
        let mut columns = vec![Some(queue.into()), Some(partition.into()), Some(due.into())];
        columns.extend([column::ID, column::ATTEMPT, column::ADDED_AT, column::KEY].map(|column| row.get(column)));
        columns.extend([Value::Text(error).datum(), row.get(column::PAYLOAD)]);
        Some(columns)
    };
    if !moved(&items, &key, &later, new) {
        let values = [Value::Long(place), Value::Long(fence), Value::Text(error), Value::Long(due)];
        call.db().execute(&RETRY, [Value::Int(queue), Value::Int(partition)].into_iter().chain(values).collect());
    }
}

/// Moves an item that has failed for good to the dead items.
pub fn bury(call: &Call, item: Claimed, error: &str) {
    let (items, dead) = (Table::open(ITEMS, c"_items_pkey"), Table::open(c"_dead_items", c"_dead_items_pkey"));
    let Claimed { queue, partition, place, fence } = item;
    let key = [Key::Int(queue), Key::Int(partition), Key::Long(place)];
    let new = |row: &Tuple| {
        claimed(row, item)?;
        let mut columns = vec![row.get(column::ID), Some(queue.into()), row.get(column::ATTEMPT)];
        columns.extend([row.get(column::ADDED_AT), Some(clock::timestamp().into()), row.get(column::KEY)]);
        columns.extend([Value::Text(error).datum(), row.get(column::PAYLOAD)]);
        Some(columns)
    };
    if !moved(&items, &key, &dead, new) {
        let values = [Value::Long(place), Value::Long(fence), Value::Text(error)];
        call.db().execute(&BURY, [Value::Int(queue), Value::Int(partition)].into_iter().chain(values).collect());
    }
    call.seam().kept(Kept::DeadItems);
    call.seam().count(Counter::ItemsDead, 1);
}

/// Moves a dead item to the ready items.
pub fn requeue(call: &Call, id: i64, partition: i32, place: i64) {
    let (dead, items) = (Table::open(c"_dead_items", c"_dead_items_pkey"), Table::open(ITEMS, c"_items_pkey"));
    let new = |row: &Tuple| {
        let mut columns = vec![row.get(2), Some(partition.into()), Some(place.into()), Some(id.into())];
        columns.extend([Some(0i64.into()), Some(0i32.into()), Some(clock::timestamp().into())]);
        // key, error, payload
        columns.extend((6..=8).map(|column| row.get(column)));
        Some(columns)
    };
    if moved(&dead, &[Key::Long(id)], &items, new) {
        spi::durably();
    } else {
        call.db().execute(&REQUEUE, vec![Value::Long(id), Value::Int(partition), Value::Long(place)]);
    }
}

/// Gives a ready item, without a claim, another place.
pub fn advance(call: &Call, item: Claimed, to: i64) {
    let (items, into) = (Table::open(ITEMS, c"_items_pkey"), Table::open(ITEMS, c"_items_pkey"));
    let Claimed { queue, partition, place, .. } = item;
    let new = |row: &Tuple| {
        claimed(row, item)?;
        let mut columns = vec![Some(queue.into()), Some(partition.into()), Some(to.into())];
        // id, claim, attempt, added_at, key, error, payload
        columns.extend((4..=10).map(|column| row.get(column)));
        Some(columns)
    };
    if !moved(&items, &[Key::Int(queue), Key::Int(partition), Key::Long(place)], &into, new) {
        let values = vec![Value::Int(queue), Value::Int(partition), Value::Long(place), Value::Long(to)];
        call.db().execute(&ADVANCE, values);
    }
}

/// Makes a due item ready, without a claim.
pub fn advance_due(call: &Call, due: i64, id: i64, to: Claimed) {
    let (later, items) = (Table::open(LATER, c"_later_pkey"), Table::open(ITEMS, c"_items_pkey"));
    let Claimed { queue, partition, place, fence } = to;
    let new = |row: &Tuple| {
        let mut columns = vec![Some(queue.into()), Some(partition.into()), Some(place.into()), Some(id.into())];
        columns.push(Some(fence.into()));
        // attempt, added_at, key, error, payload
        columns.extend((5..=9).map(|column| row.get(column)));
        Some(columns)
    };
    if !moved(&later, &[Key::Int(queue), Key::Int(partition), Key::Long(due), Key::Long(id)], &items, new) {
        let values = [Value::Long(due), Value::Long(id), Value::Long(place)];
        call.db()
            .execute(&ADVANCE_LATER, [Value::Int(queue), Value::Int(partition)].into_iter().chain(values).collect());
    }
}
