//! The claims of sessions that have ended, and dead items, which are tried no more.

use super::heads::{self, Heads};
use super::moves::{self, Claimed};
use super::{Claim, ITEMS, Order, Queue, column, id, lane, next, partition};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing};
use crate::pg::clock;
use crate::pg::spi::Statement;
use crate::pg::table::{Key, Locked, Sight, Table, Tuple, page_of};
use crate::pg::text::Text;
use crate::session;
use crate::shmem::databases::BOOT;
use crate::shmem::word::State;
use pgrx::Uuid;
use pgrx::pg_sys::{FLOAT8OID, INT8OID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use std::collections::HashSet;

/// Deletes items that died more than so many seconds ago, up to so many rows.
pub static RETIRE: Statement =
    Statement::tidies(include_str!("../../sql/query/item/retire.sql"), &[FLOAT8OID, INT8OID, TIMESTAMPTZOID]);
/// Returns for how many seconds the oldest item has been dead.
pub static OLDEST: Statement = Statement::reads(include_str!("../../sql/query/item/oldest.sql"), &[TIMESTAMPTZOID]);

/// The error of an item that dies because the session of its last attempt has ended.
const ENDED: &str = "session ended";

#[derive(Default)]
pub struct Freed {
    items: usize,
    /// The sessions that had claimed the freed items.
    pub from: HashSet<Uuid>,
    /// Whether the call stopped at its bound, so that there may be more items to free.
    pub more: bool,
    /// Whether an item or a claim was left because another transaction has locked a row.
    pub blocked: bool,
}

/// Frees about `most` items claimed by sessions that have ended or end with this transaction. An item that has used its
/// attempts becomes a dead item.
pub fn free(call: &Call, sessions: &[Uuid], most: usize) -> Freed {
    let mut freed = Freed::default();
    let mut passed_over = 0;
    loop {
        let fences = claims_of(sessions, most, passed_over);
        for fence in &fences {
            // The claim is not locked: two calls that free the same items meet at the first item.
            let Some(claim) = Claim::of(*fence) else { continue };
            let (any, all) = free_claim(call, &claim);
            freed.from.extend(any.then_some(claim.session));
            if all && Claim::forget(*fence) {
                freed.items += claim.items.len();
            } else {
                freed.blocked = true;
                passed_over += 1;
            }
            if freed.items >= most {
                freed.more = true;
                return freed;
            }
        }
        if fences.len() < most {
            return freed;
        }
    }
}

/// Returns the fences of up to `most` claims of sessions, after the first `skip`.
fn claims_of(sessions: &[Uuid], most: usize, skip: usize) -> Vec<i64> {
    let table = Table::open(c"_claims", c"_claims_session");
    page_of(&table, sessions, most, skip, |row| Some(row.required(1)))
}

/// Frees the items of a claim. Returns whether it has freed any, and whether it has left none behind. It leaves an item
/// if another transaction has locked the item, or the row of its key's head.
fn free_claim(call: &Call, claim: &Claim) -> (bool, bool) {
    let Some(queue) = Queue::numbered(claim.queue) else { return (false, true) };
    let items = Table::open(ITEMS, c"_items_pkey");
    let heads = (claim.order != Order::None).then(|| Heads::of(call, queue.number));
    let mut any = false;
    let mut free = |(partition, place, id): &(i32, i64, i64)| loop {
        let key = [Key::Int(claim.queue), Key::Int(*partition), Key::Long(*place)];
        let look = || {
            let read = |row: &Tuple| (row.required::<i64>(column::CLAIM), row.required::<i32>(column::ATTEMPT));
            items.scan(Sight::Latest, &key, |row, _| Some((read(row), row.tid())))
        };
        let Some(((fence, attempt), tid)) = look() else { return true };
        if fence != claim.fence {
            return true;
        }
        let last = attempt >= queue.max_attempts;
        let locked =
            if last { items.lock(tid, false) } else { items.try_update(&[(column::CLAIM as i32, Some(0i64.into()))]) };
        match locked {
            Locked::Busy => return false,
            Locked::Changed => {
                pgrx::check_for_interrupts!();
            }
            Locked::Mine if last => {
                let key = heads::key(queue.order, items.row().get(column::KEY));
                if let (Some(heads), Some(key)) = (&heads, key)
                    && !next::end(call, heads, &queue, *partition, &key, *id)
                {
                    return false;
                }
                let (queue, partition, place) = (queue.number, *partition, *place);
                moves::bury(call, Claimed { queue, partition, place, fence }, ENDED);
                any = true;
                return true;
            }
            Locked::Mine => {
                call.seam().places(lane(call, ITEMS, queue.number, *partition), *place, false);
                queue.feeds(call, *partition, 1);
                any = true;
                return true;
            }
        }
    };
    // Frees every item that it can, even if another transaction has locked some of the items.
    let mut all = true;
    for item in &claim.items {
        all &= free(item);
    }
    (any, all)
}

/// Frees items claimed by dead sessions, a bounded number, and returns whether it has freed any. A claim that finds too
/// few items calls it, so that no claim waits for the worker.
pub fn free_dead(call: &Call) -> bool {
    let (mut dead, now) = (Vec::new(), clock::now());
    call.shared.each_due(now, now, |at, home, word, _| {
        if home == call.home && word.state() == State::Dead {
            dead.push(at.session());
        }
    });
    if call.database.flags() & BOOT != 0 {
        // The worker has not looked yet which sessions have died during the restart.
        let rows = session::rows(&session::all()).into_iter();
        dead.extend(rows.filter(|row| call.standing_of(row).is_none()).map(|row| row.session));
    }
    if dead.is_empty() {
        return false;
    }
    let from: Vec<Uuid> = free(call, &dead, limits::MAX_FREED).from.into_iter().collect();
    call.taken_from(&from);
    !from.is_empty()
}

#[pg_extern(schema = "eskit_lease")]
fn item_requeue(id: Option<i64>) -> Result<()> {
    let shared = enter_writing("item_requeue()")?;
    let id = id.given("id")?;
    let call = Call::open(shared)?;
    let unknown = || Error::Unknown { kind: "dead item", name: id.to_string() };
    let table = Table::open(c"_dead_items", c"_dead_items_pkey");
    let find =
        || table.scan(Sight::Latest, &[Key::Long(id)], |row, _| Some((row.tid(), row.required(2), row.get::<Text>(6))));
    let (queue, key) = loop {
        let (tid, number, key) = find().ok_or_else(unknown)?;
        let queue = Queue::numbered(number).ok_or_else(unknown)?;
        queue.authorize(&call)?;
        match table.lock(tid, false) {
            Locked::Mine => break (queue, key),
            Locked::Busy => return Err(Error::ItemInFlight { id }.into()),
            Locked::Changed => {
                pgrx::check_for_interrupts!();
            }
        }
    };
    let (partitions, place) = (queue.partitions()?, id::next(&call));
    let partition = partition(key.as_deref(), id, partitions);
    moves::requeue(&call, id, partition, place);
    queue.require_still(partitions)?;
    call.seam().places(lane(&call, ITEMS, queue.number, partition), place, false);
    queue.feeds(&call, partition, 1);
    Ok(())
}
