//! Adding items.

use super::{ITEMS, LATER, Queue, SURELY_SHORT, id, lane, partition};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::pg::json::{Jsonb, JsonbArray};
use crate::pg::spi::{Statement, Value};
use crate::pg::text::{Text, TextArray};
use crate::pg::{catalog, clock};
use crate::shmem::counters::Counter;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::{
    self, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, JSONBARRAYOID, JSONBOID, TEXTARRAYOID, TEXTOID,
};
use pgrx::prelude::*;
use std::collections::HashMap;

static ADD: Statement =
    Statement::tidies(include_str!("../../sql/query/item/add.sql"), &[INT4OID, INT4OID, INT8OID, TEXTOID, JSONBOID]);
static ADD_LATER: Statement = Statement::tidies(
    include_str!("../../sql/query/item/add_later.sql"),
    &[INT4OID, INT4OID, INT8OID, TEXTOID, JSONBOID, INT8OID],
);
static ADD_MANY: Statement = Statement::tidies(
    include_str!("../../sql/query/item/add_many.sql"),
    &[INT4OID, INT4ARRAYOID, INT8ARRAYOID, TEXTARRAYOID, JSONBARRAYOID],
);
static ADD_MANY_LATER: Statement = Statement::tidies(
    include_str!("../../sql/query/item/add_many_later.sql"),
    &[INT4OID, INT4ARRAYOID, INT8ARRAYOID, TEXTARRAYOID, JSONBARRAYOID, INT8OID],
);

/// Returns when items become due, in microseconds since 2000; `None` if they are due already.
fn due_arg(run_at: Option<TimestampWithTimeZone>) -> Result<Option<i64>> {
    let Some(at) = run_at.map(pg_sys::TimestampTz::from) else { return Ok(None) };
    if at == i64::MAX || at == i64::MIN {
        return Err(Error::Infinite("run_at").into());
    }
    Ok(Some(at).filter(|at| *at > clock::timestamp()))
}

/// Refuses a payload that is too large, as it is stored or as text. No client could receive such an item, so it would
/// be claimed again and again, in vain.
fn require_fits(bytes: usize, text_length: impl FnOnce() -> usize) -> Result<()> {
    if bytes > limits::MAX_PAYLOAD {
        return Err(Error::Payload { bytes, most: limits::MAX_PAYLOAD, as_text: false }.into());
    }
    if bytes > SURELY_SHORT {
        let bytes = text_length();
        if bytes > limits::MAX_PAYLOAD_TEXT {
            return Err(Error::Payload { bytes, most: limits::MAX_PAYLOAD_TEXT, as_text: true }.into());
        }
    }
    Ok(())
}

/// Notes the added items with the seam, after a check that no transaction drops the queue or changes its partitions.
/// `first`: the first place and the number of items in each partition.
fn added(
    call: &Call,
    queue: &Queue,
    partitions: i32,
    due: Option<i64>,
    first: &HashMap<i32, (i64, usize)>,
) -> Result<()> {
    queue.require_still(partitions)?;
    for (partition, (place, count)) in first {
        let (table, from) = due.map_or((ITEMS, *place), |due| (LATER, due));
        call.seam().places(lane(call, table, queue.number, *partition), from, false);
        if due.is_none() {
            queue.feeds(call, *partition, *count);
        }
    }
    if let Some(due) = due {
        call.seam().due(queue.number, due);
    }
    call.seam().count(Counter::ItemsAdded, first.values().map(|(_, count)| count).sum());
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn item_add(
    queue: Option<Text>,
    payload: Option<Jsonb>,
    key: default!(Option<Text>, "NULL"),
    run_at: default!(Option<TimestampWithTimeZone>, "NULL"),
) -> Result<i64> {
    let shared = enter_writing("item_add()")?;
    let name = text_arg("queue", queue)?;
    let payload = payload.given("payload")?;
    require_fits(payload.len(), || payload.text_length())?;
    let key = key.map(|key| text_arg("key", Some(key))).transpose()?;
    let due = due_arg(run_at)?;
    let call = Call::open(shared)?;
    let queue = Queue::of(&name)?;
    let (partitions, id) = (queue.partitions()?, id::next(&call));
    let partition = partition(key.as_deref(), id, partitions);
    // Locks the table here, which gives up soon: a statement would wait for the lock.
    catalog::lock(if due.is_none() { ITEMS } else { LATER });
    let db = call.db();
    let mut values = vec![
        Value::Int(queue.number),
        Value::Int(partition),
        Value::Long(id),
        Value::MaybeText(key.as_deref()),
        Value::Datum(payload.datum()),
    ];
    match due {
        None => db.execute(&ADD, values),
        Some(due) => {
            values.push(Value::Long(due));
            db.execute(&ADD_LATER, values)
        }
    };
    added(&call, &queue, partitions, due, &HashMap::from([(partition, (id, 1))]))?;
    Ok(id)
}

#[pg_extern(schema = "eskit_lease")]
fn item_add_many(
    queue: Option<Text>,
    payloads: Option<JsonbArray>,
    keys: default!(Option<TextArray>, "NULL"),
    run_at: default!(Option<TimestampWithTimeZone>, "NULL"),
) -> Result<Vec<i64>> {
    let shared = enter_writing("item_add_many()")?;
    let name = text_arg("queue", queue)?;
    let payloads = payloads.given("payloads")?;
    let count = payloads.elements.len();
    if count > limits::MAX_NAMES {
        return Err(Error::Number { what: "items", given: count as i64, min: 0, max: limits::MAX_NAMES as i64 }.into());
    }
    for payload in &payloads.elements {
        let payload = payload.given("payload")?;
        require_fits(payload.len(), || payload.text_length())?;
    }
    let key = |key: Option<Text>| key.map(|key| text_arg("key", Some(key))).transpose();
    let keys: Vec<Option<String>> = match keys {
        None => vec![None; count],
        Some(keys) => keys.0.into_iter().map(key).collect::<Result<_>>()?,
    };
    if keys.len() != count {
        return Err(Error::Keys { keys: keys.len(), payloads: count }.into());
    }
    let due = due_arg(run_at)?;
    let call = Call::open(shared)?;
    let queue = Queue::of(&name)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let partitions = queue.partitions()?;
    let ids: Vec<i64> = (0..count).map(|_| id::next(&call)).collect();
    let places: Vec<i32> = keys.iter().zip(&ids).map(|(key, id)| partition(key.as_deref(), *id, partitions)).collect();
    let mut first = HashMap::new();
    for (partition, id) in places.iter().zip(&ids) {
        first.entry(*partition).or_insert((*id, 0)).1 += 1;
    }
    // As above: a statement would wait for the lock.
    catalog::lock(if due.is_none() { ITEMS } else { LATER });
    let db = call.db();
    let mut values = vec![
        Value::Int(queue.number),
        Value::Ints(&places),
        Value::Longs(&ids),
        Value::MaybeTexts(keys.iter().map(Option::as_deref).collect()),
        Value::Datum(payloads.datum),
    ];
    match due {
        None => db.execute(&ADD_MANY, values),
        Some(due) => {
            values.push(Value::Long(due));
            db.execute(&ADD_MANY_LATER, values)
        }
    };
    added(&call, &queue, partitions, due, &first)?;
    Ok(ids)
}
