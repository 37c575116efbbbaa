//! Claiming items.
//!
//! Files, low to high: claimer, plain, ordered, mod.

mod claimer;
mod ordered;
mod plain;

use super::partitions::Owned;
use super::{Claim, ITEMS, Order, Queue, dead, lane};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::lease::acquire::grantee;
use crate::lease::fence;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Statement, Value};
use crate::pg::text::Text;
use crate::pg::{clock, row};
use crate::session::{self, touch};
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use claimer::{Claimer, Taken};
use ordered::Look;
use pgrx::pg_sys::{Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, TIMESTAMPTZOID, UUIDOID};
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::HashSet;

static CLAIM: Statement = Statement::writes(
    include_str!("../../sql/query/item/claim.sql"),
    &[INT8OID, UUIDOID, INT4OID, TIMESTAMPTZOID, INT8ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, TEXTOID],
);

/// How often one call looks at its lanes, at most; the look after [`dead::free_dead`] does not count. If an item
/// becomes free before the session is noted as hungry, the call looks again.
const LOOKS: usize = 3;

impl Claimer<'_> {
    /// Looks at the one partition of a queue without a group, or at the session's partitions that may have items.
    fn look(&mut self, owned: Option<&Owned>, from_beginning: bool) {
        self.seen.clear();
        self.next_due = None;
        let Some(owned) = owned else {
            self.look_at(0, from_beginning);
            return;
        };
        let noted = owned.note();
        self.next_due = owned.next_due(&noted);
        for partition in owned.candidates(&noted) {
            if self.has_all() {
                break;
            }
            let lane = lane(self.call, ITEMS, self.queue.number, partition);
            let turn = self.call.shared.span_turn(lane);
            if let Some(due) = self.look_at(partition, from_beginning) {
                self.call.shared.pass_over(lane, turn, due);
            }
        }
        self.noted = noted;
    }

    /// Claims from a partition. Returns the time before which the partition has no further item, if that is known.
    fn look_at(&mut self, partition: i32, from_beginning: bool) -> Option<i64> {
        if self.queue.order != Order::None {
            return Look::of(self, partition, from_beginning).claim();
        }
        let due = self.due(partition);
        if self.has_all() || !self.ready(partition, from_beginning) { None } else { due }
    }

    /// Returns whether no item has become free since the look began.
    fn is_turn(&self, owned: Option<&Owned>) -> bool {
        match owned {
            // Of a group's many lanes, not all have a floor. So spans are compared.
            Some(owned) => self.noted.iter().zip(&owned.note()).all(|(before, now)| before.is_same_turn(now)),
            None => self.seen.iter().all(|(lane, start)| self.call.shared.is_turn(*lane, *start)),
        }
    }

    /// Looks until the call has enough items or finds no further ones, [`LOOKS`] times at most. If items are missing,
    /// notes the session as hungry, or bumps its revision if the claim is full.
    fn claim(&mut self, me: SlotRef, owned: Option<&Owned>) {
        self.call.shared.looks(self.call.database, me, self.queue.number);
        self.look(owned, false);
        if !self.has_all() && dead::free_dead(self.call) {
            self.look(owned, true);
        }
        for _ in 1..LOOKS {
            if self.has_all() {
                break;
            }
            self.hungers(me, owned);
            if self.is_turn(owned) {
                return;
            }
            self.look(owned, false);
        }
        if self.taken.len() < self.want && self.is_full() {
            // There may be more items, so a later session_wait must return at once.
            self.call.shared.bump(me);
        } else if !self.has_all() {
            self.hungers(me, owned);
        }
    }

    /// Notes the session as hungry: an item that becomes free will wake it, or the time `next_due`.
    fn hungers(&self, me: SlotRef, owned: Option<&Owned>) {
        let partitions = owned.map_or(Some([].as_slice()), Owned::known);
        self.call.shared.hunger(self.call.database, me, self.queue.number, partitions, self.next_due);
    }

    /// Writes the row of the claim. If the table is plain, inserts the row without a statement, which is faster.
    fn write(&self, fence: i64, session: Uuid) {
        let partitions: Vec<i32> = self.taken.iter().map(|item| item.partition).collect();
        let places: Vec<i64> = self.taken.iter().map(|item| item.place).collect();
        let ids: Vec<i64> = self.taken.iter().map(|item| item.id).collect();
        let now = clock::timestamp();
        let values = vec![
            Value::Long(fence),
            Value::Uuid(session),
            Value::Int(self.queue.number),
            Value::Long(now),
            Value::Longs(&places),
            if partitions.iter().any(|partition| *partition != 0) { Value::Ints(&partitions) } else { Value::Null },
            if ids == places { Value::Null } else { Value::Longs(&ids) },
            Value::MaybeText(Some(self.queue.order).filter(|order| *order != Order::None).map(Order::name)),
        ];
        let row: Vec<Option<Datum>> = values.into_iter().map(Value::datum).collect();
        if Claim::table().try_insert(&row) {
            spi::durably();
        } else {
            let given = |column: Option<Datum>| column.map_or(Value::Null, Value::Datum);
            self.call.db().execute(&CLAIM, row.into_iter().map(given).collect());
        }
    }
}

/// Wakes the sessions for which an item has become due, and returns the queues with such items. The worker calls it.
pub fn announce_due(call: &Call, now: u64) -> HashSet<String> {
    let due = call.shared.feed_due(call.database, now);
    due.into_iter().filter_map(Queue::numbered).map(|queue| queue.name).collect()
}

#[pg_extern(schema = "eskit_lease")]
fn item_claim(
    queue: Option<Text>,
    session: Option<Uuid>,
    max_items: default!(Option<i32>, "1"),
) -> Result<
    row::TableIterator<(
        name!(id, i64),
        name!(key, Option<Text>),
        name!(payload, Option<Jsonb>),
        name!(attempt, i32),
        name!(fence, i64),
    )>,
> {
    let shared = enter_writing("item_claim()")?;
    let name = text_arg("queue", queue)?;
    let session = session.given("session")?;
    let most = max_items.given("max_items")?;
    let want = usize::try_from(most)
        .ok()
        .filter(|_| (1..=limits::MAX_CLAIM).contains(&most))
        .ok_or(Error::Argument { argument: "max_items", given: most.into(), min: 1, max: limits::MAX_CLAIM.into() })?;
    let me = touch(shared, session)?.acquirer().map_err(session::ended)?;
    let call = Call::open(shared)?;
    let queue = Queue::of(&name)?;
    grantee(&call, me).map_err(session::ended)?;
    fence::raise(&call);
    let mut claimer = Claimer::of(&call, &queue, want);
    let owned = Owned::of(&call, &queue, session)?;
    claimer.claim(me, owned.as_ref());
    let Some(fence) = claimer.fence.filter(|_| !claimer.taken.is_empty()) else {
        return Ok(row::TableIterator::of(Vec::new()));
    };
    claimer.write(fence, session);
    call.seam().count(Counter::ItemsClaimed, claimer.taken.len());
    let answer = |item: Taken| (item.id, item.key, item.payload, item.attempt, fence);
    Ok(row::TableIterator::of(claimer.taken.into_iter().map(answer).collect()))
}
