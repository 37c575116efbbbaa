//! Claiming items.

mod ordered;

use super::moves::{self, Claimed};
use super::partitions::Owned;
use super::{Claim, ITEMS, LATER, Order, Queue, column, dead, id, lane};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, enter, text_arg};
use crate::lease::acquire::grantee;
use crate::lease::fence;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{clock, row};
use crate::session::touch;
use crate::shmem::floors::{Lane, Start};
use crate::shmem::slots::SlotRef;
use crate::shmem::spans::Noted;
use ordered::Look;
use pgrx::pg_sys::{Datum, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, TIMESTAMPTZOID, UUIDOID};
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

static CLAIM: Statement = Statement::writes(
    include_str!("../../sql/query/item/claim.sql"),
    &[INT8OID, UUIDOID, INT4OID, TIMESTAMPTZOID, INT8ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, TEXTOID],
);

/// Looks at the lanes of one call: something may become free each time before the claimer is known to be hungry.
const LOOKS: usize = 3;

struct Taken {
    partition: i32,
    place: i64,
    id: i64,
    key: Option<Text>,
    payload: Option<Jsonb>,
    attempt: i32,
}

/// What one call looks for, and has.
struct Claimer<'a> {
    call: &'a Call,
    queue: &'a Queue,
    want: usize,
    /// Drawn when there is something to claim.
    fence: Option<i64>,
    taken: Vec<Taken>,
    /// Bytes of their payloads, and of those that are just being taken.
    bytes: usize,
    /// Lanes that have been looked at, as they were before.
    seen: Vec<(Lane, Start)>,
    /// What was known of the queue's partitions before the last look, in a group's queue.
    noted: Vec<Noted>,
    /// When something becomes due that has been seen not to be.
    next_due: Option<i64>,
    /// The last fence whose claim has been looked for, and whether it has a row.
    known: Option<(i64, bool)>,
}

impl Claimer<'_> {
    fn has_all(&self) -> bool {
        self.taken.len() >= self.want || self.is_full()
    }

    /// Whether it has as many bytes as one claim gets.
    fn is_full(&self) -> bool {
        self.bytes >= limits::MAX_CLAIM_BYTES
    }

    fn fence(&mut self) -> i64 {
        let call = self.call;
        *self.fence.get_or_insert_with(|| {
            let fence = fence::next(call);
            // Whichever is first: the claim is looked for by its row if another came before with a greater fence.
            let first = &call.database.first_claim;
            first.compare_exchange(0, fence, Ordering::AcqRel, Ordering::Relaxed).ok();
            fence
        })
    }

    /// Whether no claim stands behind a fence.
    fn is_free(&mut self, claim: i64) -> bool {
        let first = self.call.database.first_claim.load(Ordering::Acquire);
        if claim == 0 || first != 0 && claim >= first {
            return claim == 0;
        }
        match self.known {
            Some((fence, exists)) if fence == claim => !exists,
            _ => {
                let exists = Claim::exists(claim);
                self.known = Some((claim, exists));
                !exists
            }
        }
    }

    fn start(&mut self, lane: Lane, from_beginning: bool) -> Start {
        let start = self.call.shared.floor(lane);
        self.seen.push((lane, start));
        if from_beginning { start.at_the_beginning() } else { start }
    }

    /// Claims what is ready in a partition. `from_beginning`: this transaction has freed something below the floor.
    /// Whether nothing more is to be had.
    fn ready(&mut self, partition: i32, from_beginning: bool) -> bool {
        let lane = lane(self.call, ITEMS, self.queue.number, partition);
        let start = self.start(lane, from_beginning);
        let items = Table::open(ITEMS, c"_items_pkey");
        let (mut first, mut stop) = (None, i64::MAX);
        let key = [Key::Int(self.queue.number), Key::Int(partition), Key::From(start.at)];
        items.scan(Sight::Dirty, &key, |row, flight| {
            pgrx::check_for_interrupts!();
            let (place, claim) = (row.get(column::PLACE).unwrap_or(0), row.get(column::CLAIM).unwrap_or(0));
            if self.fence == Some(claim) {
                return None;
            }
            if flight != Flight::None {
                stop = stop.min(place);
            } else if self.is_free(claim) {
                if self.has_all() {
                    stop = stop.min(place);
                    return Some(());
                } else if self.take(&items, row, partition, place) {
                    first = first.or(Some(place));
                } else {
                    stop = stop.min(place);
                }
            }
            None
        });
        if let Some(first) = first {
            self.call.seam().places(lane, first, true);
        }
        self.call.shared.raise(lane, start, stop);
        stop == i64::MAX
    }

    /// Claims the row that the scan stands at, if nobody has it in hand.
    fn take(&mut self, items: &Table, row: &Tuple, partition: i32, place: i64) -> bool {
        let fence = self.fence();
        let attempt = row.get::<i32>(column::ATTEMPT).unwrap_or(0).saturating_add(1);
        let (id, key, payload) = (row.get(column::ID).unwrap_or(0), row.get(column::KEY), row.get(column::PAYLOAD));
        let changes = [(column::CLAIM as i32, Some(fence.into())), (column::ATTEMPT as i32, Some(attempt.into()))];
        let mine = items.try_update(&changes) == Locked::Mine;
        if mine {
            self.bytes += payload.as_ref().map_or(0, Jsonb::len);
            self.taken.push(Taken { partition, place, id, key, payload, attempt });
        }
        mine
    }

    /// Claims what has become due in a partition. Until when nothing more becomes so, if that is known.
    fn due(&mut self, partition: i32) -> Option<i64> {
        let lane = lane(self.call, LATER, self.queue.number, partition);
        let start = self.start(lane, false);
        let later = Table::open(LATER, c"_later_pkey");
        let now = clock::timestamp();
        let (mut found, mut stop) = (Vec::new(), i64::MAX);
        let room = self.want - self.taken.len();
        let key = [Key::Int(self.queue.number), Key::Int(partition), Key::From(start.at)];
        later.scan(Sight::Dirty, &key, |row, flight| {
            let (due, id): (i64, i64) = (row.get(3).unwrap_or(0), row.get(4).unwrap_or(0));
            if due > now || found.len() == room || self.is_full() {
                if due > now {
                    self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
                }
                stop = stop.min(due);
                return Some(());
            }
            if flight == Flight::None && later.lock(row.tid(), false) == Locked::Mine {
                self.bytes += row.size(column::LATER_PAYLOAD);
                found.push((due, id));
            } else {
                stop = stop.min(due);
            }
            None
        });
        if let Some((first, _)) = found.first() {
            self.call.seam().places(lane, *first, true);
        }
        for (due, id) in found {
            self.take_due(partition, due, id, id::next(self.call));
        }
        self.call.shared.raise(lane, start, stop);
        (stop > now).then_some(stop)
    }

    /// Moves an item that is due and locked to those that are claimed.
    fn take_due(&mut self, partition: i32, due: i64, id: i64, place: i64) {
        let fence = self.fence();
        let to = Claimed { queue: self.queue.number, partition, place, fence };
        let taken = moves::claim(self.call, due, id, to);
        self.taken.extend(taken.map(|(key, payload, attempt)| Taken { partition, place, id, key, payload, attempt }));
    }

    /// Looks at the partition that all have, or at the session's in which something may be had.
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

    /// Claims from a partition. Until when nothing more is to be had, if that is known.
    fn look_at(&mut self, partition: i32, from_beginning: bool) -> Option<i64> {
        if self.queue.order != Order::None {
            return Look::of(self, partition, from_beginning).claim();
        }
        let due = self.due(partition);
        if self.has_all() || !self.ready(partition, from_beginning) { None } else { due }
    }

    /// Whether nothing has become free since the look began.
    fn is_turn(&self, owned: Option<&Owned>) -> bool {
        match owned {
            // Of many lanes not all have floors, so their spans are asked.
            Some(owned) => self.noted.iter().zip(&owned.note()).all(|(before, now)| before.is_same_turn(now)),
            None => self.seen.iter().all(|(lane, start)| self.call.shared.is_turn(*lane, *start)),
        }
    }

    /// Looks until there is enough, or nothing more and the session is known to be hungry.
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
            // There may be more, so who then waits for it is not to wait.
            self.call.shared.bump(me);
        } else if !self.has_all() {
            self.hungers(me, owned);
        }
    }

    /// Has the session woken when there is more, or when something that has been seen becomes due.
    fn hungers(&self, me: SlotRef, owned: Option<&Owned>) {
        let partitions = owned.map_or(Some([].as_slice()), Owned::known);
        self.call.shared.hunger(self.call.database, me, self.queue.number, partitions, self.next_due);
    }

    /// Writes the row of the claim: by hand, as there is one for each call, if the table is as we made it.
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

/// For the worker: wakes the sessions for whom something has become due, and gives the queues in which it has.
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
    let shared = enter()?;
    spi::require_writes("item_claim()")?;
    let name = text_arg("queue", queue)?;
    let session = session.ok_or(Error::Null("session"))?;
    let most = max_items.ok_or(Error::Null("max_items"))?;
    let want = usize::try_from(most)
        .ok()
        .filter(|_| (1..=limits::MAX_CLAIM).contains(&most))
        .ok_or(Error::Argument { argument: "max_items", given: most.into(), min: 1, max: limits::MAX_CLAIM.into() })?;
    let touch = touch(shared, session)?;
    let me = match (touch.refusal(), touch.at) {
        (None, Some(at)) => at,
        (refusal, _) => return Err(Error::SessionEnded(refusal.unwrap_or("unknown_session")).into()),
    };
    let call = Call::open(shared)?;
    let queue = Queue::of(&name)?;
    grantee(&call, me).map_err(Error::SessionEnded)?;
    fence::raise(&call);
    let (fence, taken) = (None, Vec::with_capacity(want.min(100)));
    let mut claimer = Claimer {
        call: &call,
        queue: &queue,
        want,
        fence,
        taken,
        bytes: 0,
        seen: Vec::new(),
        noted: Vec::new(),
        next_due: None,
        known: None,
    };
    let owned = Owned::of(&call, &queue, session)?;
    claimer.claim(me, owned.as_ref());
    let Some(fence) = claimer.fence.filter(|_| !claimer.taken.is_empty()) else {
        return Ok(row::TableIterator::of(Vec::new()));
    };
    claimer.write(fence, session);
    let answer = |item: Taken| (item.id, item.key, item.payload, item.attempt, fence);
    Ok(row::TableIterator::of(claimer.taken.into_iter().map(answer).collect()))
}
