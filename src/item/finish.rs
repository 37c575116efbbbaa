//! Finishing items: done, failed, or given back.

use super::heads::{self, At, Heads};
use super::moves::{self, Claimed};
use super::partitions::shuffled;
use super::{Claim, ITEMS, LATER, Order, Queue, column, lane, next};
use crate::base::error::{Error, Result};
use crate::base::{interval, limits};
use crate::call::{Call, Given, enter_writing};
use crate::pg::clock;
use crate::pg::guard::Mode;
use crate::pg::spi::Statement;
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::session;
use crate::shmem::counters::Counter;
use crate::shmem::databases::Kept;
use crate::shmem::word::State;
use pgrx::datum::Interval;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, FLOAT8OID, INT8OID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use std::collections::{HashMap, HashSet};

/// Deletes claims without items that are older than so many seconds, up to so many rows.
pub static RETIRE_CLAIMS: Statement =
    Statement::tidies(include_str!("../../sql/query/item/retire_claims.sql"), &[FLOAT8OID, INT8OID, TIMESTAMPTZOID]);
pub static OLDEST_CLAIM: Statement =
    Statement::reads(include_str!("../../sql/query/item/oldest_claim.sql"), &[TIMESTAMPTZOID]);

/// A claim whose items this transaction finishes.
struct Held<'a> {
    call: &'a Call,
    claim: Claim,
    items: Table,
    /// Set in a queue with an order.
    heads: Option<Heads<'a>>,
}

/// An item of a claim: where it is, and its attempt.
#[derive(Clone, Copy)]
struct Item {
    partition: i32,
    place: i64,
    id: i64,
    attempt: i32,
}

fn lost(call: &Call, fence: i64, why: String) -> ErrorReport {
    call.database.add(Counter::FencesLost, 1);
    Error::ClaimLost { fence, why }.into()
}

/// Returns the claim of a fence, if its session is alive. A close or take-over of that session waits for this
/// transaction.
fn hold(call: &Call, fence: i64) -> Result<Held<'_>> {
    let ended = || {
        lost(
            call,
            fence,
            "There is no such claim: it has ended, it is not committed yet, or this is not the fence of a claim."
                .into(),
        )
    };
    let in_flight = || ErrorReport::from(Error::ClaimInFlight { fence });
    let claim = Claim::of(fence).ok_or_else(ended)?;
    let dead = || lost(call, fence, "Its session has ended.".to_owned());
    let at = call.session(claim.session)?.ok_or_else(dead)?;
    if !call.fencer(at).try_lock(Mode::Shared) {
        return Err(in_flight());
    }
    match session::ending::outcome(call.shared, at) {
        Some(State::Alive) => {
            let heads = (claim.order != Order::None).then(|| Heads::of(call, claim.queue));
            Ok(Held { call, claim, items: Table::open(ITEMS, c"_items_pkey"), heads })
        }
        Some(State::Frozen) => Err(in_flight()),
        _ => Err(dead()),
    }
}

impl Held<'_> {
    /// Returns the items of some ids, each once. All of them must belong to this claim.
    fn of(&self, ids: &[i64]) -> Result<Vec<(i32, i64, i64)>> {
        let known: HashMap<i64, (i32, i64, i64)> = self.claim.items.iter().map(|item| (item.2, *item)).collect();
        let mut seen = HashSet::new();
        let of = |id: &i64| {
            known.get(id).copied().ok_or_else(|| {
                lost(self.call, self.claim.fence, format!("Item {id} is not one of those that were claimed under it."))
            })
        };
        ids.iter().filter(|id| seen.insert(**id)).map(of).collect()
    }

    /// Returns the fence that an item is claimed under, and its attempt. `items` then stands at the row.
    fn look(&self, partition: i32, place: i64) -> Option<(i64, i32)> {
        let key = [Key::Int(self.claim.queue), Key::Int(partition), Key::Long(place)];
        self.items
            .scan(Sight::Latest, &key, |row, _| Some((row.required(column::CLAIM), row.required(column::ATTEMPT))))
    }

    /// Changes the row of an item that is still claimed under the fence.
    fn change(&self, (partition, place, id): (i32, i64, i64), mut change: impl FnMut(Item) -> Locked) -> Result<Item> {
        let fence = self.claim.fence;
        loop {
            let attempt = match self.look(partition, place) {
                Some((claim, attempt)) if claim == fence => attempt,
                Some((claim, _)) if claim != 0 => {
                    let why = format!("Item {id} has been claimed again, under fence {claim}.");
                    return Err(lost(self.call, fence, why));
                }
                _ => return Err(lost(self.call, fence, format!("Item {id} has been finished or given back."))),
            };
            let item = Item { partition, place, id, attempt };
            match change(item) {
                Locked::Mine => return Ok(item),
                Locked::Busy => return Err(Error::ItemInFlight { id }.into()),
                Locked::Changed => {
                    pgrx::check_for_interrupts!();
                }
            }
        }
    }

    /// Deletes the row of the claim with its last item. An item that another transaction is just finishing may come
    /// back. If only such items are left, the row stays for retention: neither transaction knows which is last.
    fn finished(&self, ids: &[i64]) {
        let ids: HashSet<i64> = ids.iter().copied().collect();
        let mut in_flight = false;
        let mut left = |(partition, place, id): &(i32, i64, i64)| {
            let flight = if ids.contains(id) { None } else { self.flight(*partition, *place) };
            in_flight |= flight.is_some_and(|flight| flight != Flight::None);
            flight == Some(Flight::None)
        };
        // Most claims are finished in order, from one end or the other, so one item of each end is looked at first.
        // Then items are looked at in an order drawn by chance. If many are left, this finds one soon, whatever the
        // order of finishing.
        let items = &self.claim.items;
        if items.iter().rev().take(1).chain(items.iter().take(1)).any(&mut left)
            || shuffled(items.clone()).any(|item| left(&item))
        {
            return;
        }
        if in_flight {
            self.call.seam().kept(Kept::Claims);
        } else {
            Claim::forget(self.claim.fence);
        }
    }

    /// Returns the change of an item that another transaction has in flight, if the item is claimed under the fence.
    /// The scan may miss a row that is just moving, but the item of such a row is being given back.
    fn flight(&self, partition: i32, place: i64) -> Option<Flight> {
        let key = [Key::Int(self.claim.queue), Key::Int(partition), Key::Long(place)];
        let claimed = |row: &Tuple, flight| (row.required::<i64>(column::CLAIM) == self.claim.fence).then_some(flight);
        self.items.scan(Sight::Dirty, &key, claimed)
    }

    fn lock(&self, item: Item) -> Locked {
        let key = [Key::Int(self.claim.queue), Key::Int(item.partition), Key::Long(item.place)];
        let tid = self.items.scan(Sight::Latest, &key, |row, _| Some(row.tid()));
        tid.map_or(Locked::Changed, |tid| self.items.lock(tid, false))
    }

    /// Returns the key that orders the item whose row was just looked at.
    fn key(&self) -> Option<String> {
        self.heads.as_ref().and_then(|_| heads::key(self.claim.order, self.items.row().get(column::KEY)))
    }

    /// Ends the head of the key of an item that is gone, so that the next item is free. If the item `goes` to another
    /// try, it stays the head, in its new place.
    fn head(&self, queue: &Queue, item: Item, key: Option<String>, goes: Option<At>) -> Result<()> {
        let (Some(heads), Some(key)) = (&self.heads, key) else { return Ok(()) };
        let had = match goes {
            Some(to) => heads.moves(item.partition, &key, item.id, to),
            None => next::end(self.call, heads, queue, item.partition, &key, item.id),
        };
        if had { Ok(()) } else { Err(Error::ItemInFlight { id: item.id }.into()) }
    }

    /// Notes that an item is free again in its place.
    fn freed(&self, queue: &Queue, item: Item) {
        self.call.seam().places(lane(self.call, ITEMS, queue.number, item.partition), item.place, false);
        queue.feeds(self.call, item.partition, 1);
    }

    fn queue(&self) -> Result<Queue> {
        Queue::numbered(self.claim.queue)
            .ok_or_else(|| lost(self.call, self.claim.fence, "Its queue has been dropped.".to_owned()))
    }
}

fn ids_arg(ids: Option<Vec<Option<i64>>>) -> Result<Vec<i64>> {
    let ids: Vec<i64> = ids.given("ids")?.into_iter().collect::<Option<_>>().given("id")?;
    if ids.len() > limits::MAX_CLAIM as usize {
        return Err(
            Error::Number { what: "items", given: ids.len() as i64, min: 0, max: limits::MAX_CLAIM.into() }.into()
        );
    }
    Ok(ids)
}

/// Returns the part of an error that is stored.
fn error_arg(error: Option<Text>) -> Result<String> {
    let mut error = error.given("error")?.0;
    error.truncate(error.floor_char_boundary(limits::MAX_ITEM_ERROR));
    Ok(error)
}

#[pg_extern(schema = "eskit_lease")]
fn item_done(ids: Option<Vec<Option<i64>>>, fence: Option<i64>) -> Result<i32> {
    let shared = enter_writing("item_done()")?;
    let ids = ids_arg(ids)?;
    let fence = fence.given("fence")?;
    let call = Call::open(shared)?;
    let held = hold(&call, fence)?;
    let items = held.of(&ids)?;
    let queue = held.heads.as_ref().map(|_| held.queue()).transpose()?;
    for item in &items {
        let mut key = None;
        let done = |_| {
            key = held.key();
            held.items.try_delete()
        };
        let item = held.change(*item, done)?;
        if let Some(queue) = &queue {
            held.head(queue, item, key, None)?;
        }
    }
    call.seam().count(Counter::ItemsDone, items.len());
    held.finished(&ids);
    Ok(items.len() as i32)
}

#[pg_extern(schema = "eskit_lease")]
fn item_unclaim(ids: Option<Vec<Option<i64>>>, fence: Option<i64>) -> Result<i32> {
    let shared = enter_writing("item_unclaim()")?;
    let ids = ids_arg(ids)?;
    let fence = fence.given("fence")?;
    let call = Call::open(shared)?;
    let held = hold(&call, fence)?;
    let queue = held.queue()?;
    let items = held.of(&ids)?;
    for item in &items {
        let free = |item: Item| {
            let (claim, attempt) = (pg_sys::Datum::from(0i64), pg_sys::Datum::from((item.attempt - 1).max(0)));
            held.items.try_update(&[(column::CLAIM as i32, Some(claim)), (column::ATTEMPT as i32, Some(attempt))])
        };
        let item = held.change(*item, free)?;
        held.freed(&queue, item);
    }
    held.finished(&ids);
    Ok(items.len() as i32)
}

#[pg_extern(schema = "eskit_lease")]
fn item_fail(
    id: Option<i64>,
    fence: Option<i64>,
    error: Option<Text>,
    retry_in: default!(Option<Interval>, "NULL"),
) -> Result<bool> {
    let shared = enter_writing("item_fail()")?;
    let id = id.given("id")?;
    let fence = fence.given("fence")?;
    let error = error_arg(error)?;
    let retry_ms = retry_in.map(|retry_in| interval::retry_ms("retry_in", retry_in)).transpose()?;
    let call = Call::open(shared)?;
    let held = hold(&call, fence)?;
    let queue = held.queue()?;
    let Some(found) = held.of(&[id])?.pop() else { return Ok(false) };
    let item = held.change(found, |item| held.lock(item))?;
    let key = held.key();
    let again = item.attempt < queue.max_attempts;
    let claimed = Claimed { queue: queue.number, partition: item.partition, place: item.place, fence };
    if again {
        let wait_ms = retry_ms.map_or_else(|| queue.backoff_ms(item.attempt), i64::from);
        let due = clock::timestamp() + wait_ms * 1_000;
        moves::retry(&call, claimed, &error, due);
        held.head(&queue, item, key, Some(At::Later(due)))?;
        call.seam().places(lane(&call, LATER, queue.number, item.partition), due, false);
        if wait_ms == 0 {
            queue.feeds(&call, item.partition, 1);
        } else {
            call.seam().due(queue.number, due);
        }
    } else {
        moves::bury(&call, claimed, &error);
        held.head(&queue, item, key, None)?;
    }
    call.seam().count(Counter::ItemsFailed, 1);
    held.finished(&[item.id]);
    Ok(again)
}
