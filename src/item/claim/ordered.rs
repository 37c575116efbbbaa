//! Claiming in order: what one call takes from a partition of a queue whose ordering is `key` or `fifo`.
//!
//! An item comes when it is added to the ready items, or when it becomes due. A look goes through both together, in the
//! order in which they came. So the first item of a key that it meets is the first of that key, and all others wait.
//! The key's head decides about that first item (see [`crate::item::heads`]). If the key has no head, the item becomes
//! the head. If another item is the head, the look takes that one, if it is free. In a `fifo` queue, a look takes
//! nothing beside a head. Waiting items hold the floor. If many wait, it may pass them (see [`crate::item::next`]).
//!
//! **What makes it right.** One at a time: a claim takes an item only if it has made or found the item as the head of
//! its key, and no change of that head is in flight. In order: an item becomes a head only if it was there when the
//! look began. A [`Moment`] tells this, and the floors are read after that moment. Every item that was added earlier
//! was there as well, and the look has met that earlier item first, wherever it is now. Of two items that are added
//! during the look, it might see only the later one. So both wait for the next look: adding them begins a new turn. No
//! floor passes what an open transaction has claimed: if it fails, its heads are gone, and a look may be under way.
//!
//! The head is made first. If a transaction that does not claim has locked the item, the head is deleted again.

use super::claimer::Claimer;
use crate::item::heads::{self, At, Head, Heads};
use crate::item::{ITEMS, LATER, Order, column, id, lane, next};
use crate::pg::clock;
use crate::pg::table::{Flight, Key, Locked, Moment, Sight, Table, Walk};
use crate::pg::text::Text;
use crate::shmem::floors::{Lane, NOWHERE, Start};
use std::collections::HashMap;

/// A due item: its time, and its id.
type Due = (i64, i64);

/// Up to this many waiting items hold the floor. To step over them costs less than to move them above the floor one by
/// one.
const FEW: usize = 32;

/// The result of a look at an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meeting {
    /// The item is taken, by this call or another session: the floor may pass it.
    Taken,
    /// The item is free, and waits behind another one of its key.
    Waits,
    /// A later look must meet the item again.
    Stays,
}

/// The part of a lane that the call looks through.
struct Stretch {
    lane: Lane,
    start: Start,
    /// The first item that this call has taken.
    first: i64,
    /// The first item that a later look must meet again.
    stop: i64,
    /// The first waiting item of each key.
    waiting: HashMap<String, i64>,
}

impl Stretch {
    fn took(&mut self, place: i64) {
        self.first = self.first.min(place);
    }

    fn stops(&mut self, place: i64) {
        self.stop = self.stop.min(place);
    }

    fn meets(&mut self, place: i64, meeting: Meeting, key: Option<String>) {
        match (meeting, key) {
            (Meeting::Taken, _) => (),
            (Meeting::Waits, Some(key)) => {
                self.waiting.entry(key).or_insert(place);
            }
            _ => self.stops(place),
        }
    }
}

pub(super) struct Look<'a, 'b> {
    claimer: &'a mut Claimer<'b>,
    partition: i32,
    heads: Heads<'b>,
    /// Keys of the items met so far: later items of these keys must wait. The value is the id of the key's head, if
    /// that head was firm.
    met: HashMap<String, Option<i64>>,
    /// How many items wait.
    waiting: usize,
    moment: Moment,
    now: i64,
    ready: Stretch,
    due: Stretch,
    /// Due items that are locked, with their future places.
    found: Vec<(Due, i64)>,
}

impl<'a, 'b> Look<'a, 'b> {
    pub(super) fn of(claimer: &'a mut Claimer<'b>, partition: i32, from_beginning: bool) -> Look<'a, 'b> {
        let (call, queue) = (claimer.call, claimer.queue.number);
        // Opened first: memory that statements keep must not lie among the memory of the walks.
        call.db();
        let (moment, heads) = (Moment::now(), Heads::of(call, queue));
        let mut stretch = |table, from_beginning| {
            let lane = lane(call, table, queue, partition);
            let (start, waiting) = (claimer.start(lane, from_beginning), HashMap::new());
            Stretch { lane, start, first: NOWHERE, stop: NOWHERE, waiting }
        };
        let (due, ready) = (stretch(LATER, false), stretch(ITEMS, from_beginning));
        let now = clock::timestamp();
        Look { claimer, partition, heads, met: HashMap::new(), waiting: 0, moment, now, ready, due, found: Vec::new() }
    }

    /// Claims. Returns the time before which the partition has no further item, if that is known.
    pub(super) fn claim(mut self) -> Option<i64> {
        let head = match self.claimer.queue.order {
            Order::Fifo => self.heads.find(self.partition, ""),
            _ => Head::None,
        };
        match head {
            Head::None => self.merge(),
            Head::InFlight => (),
            Head::Is { id, at, .. } => self.take_head("", id, at),
        }
        self.hold_floors();
        let Look { claimer, partition, ready, due, found, now, .. } = self;
        let all = matches!(head, Head::None) && ready.stop == NOWHERE && due.stop > now;
        let until = due.stop;
        for ((due, id), place) in found {
            claimer.take_due(partition, due, id, place);
        }
        for stretch in [ready, due] {
            if stretch.first < NOWHERE {
                claimer.call.seam().places(stretch.lane, stretch.first, true);
            }
            if matches!(head, Head::None) {
                let stop = stretch.stop.min(claimer.call.seam().first_claimed(stretch.lane));
                claimer.call.shared.raise(stretch.lane, stretch.start, stop);
            }
        }
        all.then_some(until)
    }

    fn has_all(&self) -> bool {
        self.claimer.taken.len() + self.found.len() >= self.claimer.want || self.claimer.is_full()
    }

    /// Goes through ready and due items until the call has enough; in a `fifo` queue, to the first one.
    fn merge(&mut self) {
        let (later, items) = (Table::open(LATER, c"_later_pkey"), Table::open(ITEMS, c"_items_pkey"));
        let range = |from| [Key::Int(self.claimer.queue.number), Key::Int(self.partition), Key::From(from)];
        let (of_due, of_ready) = (range(self.due.start.at), range(self.ready.start.at));
        let (mut dues, mut readies) = (later.walk(Sight::Dirty, &of_due), items.walk(Sight::Dirty, &of_ready));
        let (mut due, mut ready) = (self.next_due(&later, &mut dues), next_ready(&items, &mut readies));
        loop {
            pgrx::check_for_interrupts!();
            let is_due = match (&due, &ready) {
                (Some((at, ..)), Some((_, added, _))) => at <= added,
                (due, _) => due.is_some(),
            };
            let enough = self.has_all() || self.is_fifo() && !self.met.is_empty();
            match (due, ready) {
                (None, None) => return,
                _ if enough => {
                    due.inspect(|(at, ..)| self.due.stops(*at));
                    ready.inspect(|(place, ..)| self.ready.stops(*place));
                    return;
                }
                (Some((at, id, flight)), _) if is_due => {
                    let key = self.key(later.row().get(7));
                    let meeting = self.meet_due(&later, (at, id), flight, key.clone());
                    match meeting {
                        Meeting::Taken => self.due.took(at),
                        other => self.due.meets(at, other, key),
                    }
                    self.waiting += usize::from(meeting == Meeting::Waits);
                    due = self.next_due(&later, &mut dues);
                }
                (_, Some((place, _, flight))) => {
                    let key = self.key(items.row().get(column::KEY));
                    let meeting = self.meet_ready(&items, place, flight, key.clone());
                    self.waiting += usize::from(meeting == Meeting::Waits);
                    self.ready.meets(place, meeting, key);
                    ready = next_ready(&items, &mut readies);
                }
                (Some(_), None) => return,
            }
        }
    }

    /// Notes that an item which the call has seen becomes due at this time.
    fn waits_until(&mut self, due: i64) {
        let next = &mut self.claimer.next_due;
        *next = Some(next.map_or(due, |next| next.min(due)));
    }

    fn is_fifo(&self) -> bool {
        self.claimer.queue.order == Order::Fifo
    }

    fn key(&self, key: Option<Text>) -> Option<String> {
        heads::key(self.claimer.queue.order, key)
    }

    /// Returns the next item if it is due: its time, its id and its flight. The walk stands at it.
    fn next_due(&mut self, later: &Table, walk: &mut Walk) -> Option<(i64, i64, Flight)> {
        let flight = walk.next()?;
        let (due, id) = (later.row().required(3), later.row().required(4));
        if due > self.now {
            self.due.stops(due);
            self.waits_until(due);
            return None;
        }
        Some((due, id, flight))
    }

    /// Looks at a ready item.
    fn meet_ready(&mut self, items: &Table, place: i64, flight: Flight, key: Option<String>) -> Meeting {
        let row = items.row();
        let (id, claim): (i64, i64) = (row.required(column::ID), row.required(column::CLAIM));
        if self.claimer.fence == Some(claim) {
            return Meeting::Taken;
        }
        // An item that an open transaction is adding makes no other item wait.
        if flight == Flight::Inserting {
            return Meeting::Stays;
        }
        let claimed = flight == Flight::None && !self.claimer.is_free(claim);
        if claimed || flight != Flight::None {
            key.into_iter().for_each(|key| self.meet(key));
            return if claimed { Meeting::Taken } else { Meeting::Stays };
        }
        let Some(key) = key else { return taken(self.take(items, place)) };
        if self.met.contains_key(&key) {
            return Meeting::Waits;
        }
        self.meet(key.clone());
        match self.heads.find(self.partition, &key) {
            Head::None => {
                let comes_first =
                    self.moment.shows(&items.row()) && self.heads.put(self.partition, &key, id, At::Ready(place));
                let taken = comes_first && self.take(items, place);
                if comes_first && !taken {
                    self.take_back(&key, id);
                }
                self::taken(taken)
            }
            Head::Is { id: head, .. } if head == id => taken(self.take(items, place)),
            Head::Is { id: head, at, firm } => self.waits_for(key, head, at, firm),
            Head::InFlight => Meeting::Stays,
        }
    }

    /// Looks at a due item.
    fn meet_due(&mut self, later: &Table, (due, id): Due, flight: Flight, key: Option<String>) -> Meeting {
        let row = later.row();
        if flight != Flight::None {
            if flight == Flight::Changing {
                key.into_iter().for_each(|key| self.meet(key));
            }
            return Meeting::Stays;
        }
        let Some(key) = key else { return taken(self.lock_due(later, (due, id), id::next(self.claimer.call))) };
        if self.met.contains_key(&key) {
            return Meeting::Waits;
        }
        self.meet(key.clone());
        match self.heads.find(self.partition, &key) {
            Head::None => {
                let place = id::next(self.claimer.call);
                let comes_first = self.moment.shows(&row) && self.heads.put(self.partition, &key, id, At::Ready(place));
                let taken = comes_first && self.lock_due(later, (due, id), place);
                if comes_first && !taken {
                    self.take_back(&key, id);
                }
                self::taken(taken)
            }
            Head::Is { id: head, .. } if head == id => taken(self.take_due_head(later, &key, (due, id))),
            Head::Is { id: head, at, firm } => self.waits_for(key, head, at, firm),
            Head::InFlight => Meeting::Stays,
        }
    }

    /// Makes later items of the key wait in this look.
    fn meet(&mut self, key: String) {
        self.met.entry(key).or_insert(None);
    }

    /// Takes the head of a key, if it is free. The item that was met waits for it.
    fn waits_for(&mut self, key: String, head: i64, at: At, firm: bool) -> Meeting {
        self.take_head(&key, head, at);
        self.met.insert(key, firm.then_some(head));
        Meeting::Waits
    }

    /// Returns whether the end of the key's head will find the items of the key that wait from `place` on.
    fn is_cared_for(&mut self, key: &str, place: i64) -> bool {
        let known = self.met.get(key).copied().flatten();
        let firm = known.or_else(|| match self.heads.find(self.partition, key) {
            Head::Is { id, firm: true, .. } => Some(id),
            _ => None,
        });
        firm.is_some_and(|head| place > head)
    }

    /// Makes the floors stop at waiting items. If these are many, only at those that [`next`] does not take care of.
    fn hold_floors(&mut self) {
        let pass = self.waiting > FEW && next::may_pass(self.claimer.queue.order);
        for (key, place) in std::mem::take(&mut self.ready.waiting) {
            if !(pass && self.is_cared_for(&key, place)) {
                self.ready.stops(place);
            }
        }
        for (key, due) in std::mem::take(&mut self.due.waiting) {
            // That transaction searches all due items of the key.
            if !(pass && self.is_cared_for(&key, i64::MAX)) {
                self.due.stops(due);
            }
        }
    }

    /// Takes the head of a key where it is, if it is free and due.
    fn take_head(&mut self, key: &str, id: i64, at: At) {
        let (queue, partition) = (Key::Int(self.claimer.queue.number), Key::Int(self.partition));
        match at {
            At::Ready(place) => {
                let items = Table::open(ITEMS, c"_items_pkey");
                let range = [queue, partition, Key::Long(place)];
                let mut walk = items.walk(Sight::Dirty, &range);
                while let Some(flight) = walk.next() {
                    let row = items.row();
                    let is_it = flight == Flight::None && row.required::<i64>(column::ID) == id;
                    if is_it && self.claimer.is_free(row.required(column::CLAIM)) {
                        self.take(&items, place);
                        return;
                    }
                }
            }
            At::Later(due) if due <= self.now => {
                let later = Table::open(LATER, c"_later_pkey");
                let range = [queue, partition, Key::Long(due), Key::Long(id)];
                let mut walk = later.walk(Sight::Dirty, &range);
                while let Some(flight) = walk.next() {
                    if flight == Flight::None && self.take_due_head(&later, key, (due, id)) {
                        self.due.took(due);
                        return;
                    }
                }
            }
            At::Later(due) => self.waits_until(due),
        }
    }

    /// Claims the ready item at which a walk stands.
    fn take(&mut self, items: &Table, place: i64) -> bool {
        let taken = self.claimer.take(items, &items.row(), self.partition, place);
        if taken {
            self.ready.took(place);
        }
        taken
    }

    /// Locks the due item at which a walk stands. The item is claimed later, at the given place.
    fn lock_due(&mut self, later: &Table, due: Due, place: i64) -> bool {
        let locked = later.lock(later.row().tid(), false) == Locked::Mine;
        if locked {
            self.claimer.bytes += later.row().size(column::LATER_PAYLOAD);
            self.found.push((due, place));
        }
        locked
    }

    /// Locks a due item that is the head of its key, and moves the head with it.
    fn take_due_head(&mut self, later: &Table, key: &str, due: Due) -> bool {
        let (place, before) = (id::next(self.claimer.call), self.claimer.bytes);
        if !self.lock_due(later, due, place) {
            return false;
        }
        let moves = self.heads.moves(self.partition, key, due.1, At::Ready(place));
        if !moves {
            self.found.pop();
            self.claimer.bytes = before;
        }
        moves
    }

    /// Deletes a head that this call has made. Wakes sessions: another claim may have left the item to this head.
    fn take_back(&mut self, key: &str, id: i64) {
        self.heads.end(self.partition, key, id);
        self.claimer.call.seam().places(self.ready.lane, NOWHERE, false);
        self.claimer.queue.feeds(self.claimer.call, self.partition, 1);
    }
}

fn taken(taken: bool) -> Meeting {
    if taken { Meeting::Taken } else { Meeting::Stays }
}

/// Returns the next ready item: its place, when it was added and its flight. The walk stands at it.
fn next_ready(items: &Table, walk: &mut Walk) -> Option<(i64, i64, Flight)> {
    let flight = walk.next()?;
    let row = items.row();
    Some((row.required(column::PLACE), row.required(column::ADDED_AT), flight))
}
