//! Hunger: which sessions wait for work items.
//!
//! A claim that finds less than it asked for notes that here, under the queue's bit. (There are 32 bits, so queues may
//! share one.) A transaction that commits items wakes sessions that have the bit, by their revisions, and takes the bit
//! away. Once a claimer has its bit, it looks for items again if the lane's turn has changed meanwhile. So either the
//! claimer sees an item that was just added, or the transaction that adds it sees the bit. Nothing here needs the
//! worker.
//!
//! **Until when.** Items become due by themselves. So a claimer notes the first time at which an item that it has seen
//! becomes due. A transaction that commits an item for later notes the item's time for the sessions that have the bit.
//! At that time the worker wakes the session and tells listeners. For that the worker looks at these times alone,
//! however many later items and queues there are. If no session waits for an item, its time need not be noted: each
//! claim looks for itself. So after a restart, when no session is hungry, nothing has to be found again. Each session
//! has one time, the earliest, with its queue.
//!
//! **How many.** Of the sessions that sleep in session_wait, as many are woken as there are items. If all were woken,
//! each item would cost as many claims as there are workers. A woken session may be stopped, or gone. So it is noted as
//! woken until it claims. If that takes longer than [`limits::HUNGER_PATIENCE`], the worker or another waiting call
//! wakes the next one. Hungry sessions that do not sleep learn of the items by their revisions, and do not count.
//!
//! In a queue with partitions only a partition's owner can claim. So a hungry session notes the partitions that it
//! owns, modulo [`PARTITIONS`], or all if they are many. An item wakes all sessions that have noted its partition. If a
//! bit has stood for several queues, all hungry sessions of the bit are woken: a woken session may look into another
//! one of them.
//!
//! Few of many sessions are hungry. So each [`block`] of slots counts its sessions that are hungry, or just about to
//! be. Blocks without any are skipped.

use super::block;
use super::counted::Counted;
use super::databases::Database;
use super::parts::{Hunger, PARTITIONS, WORDS};
use super::shared::Shared;
use super::slot::SlotRef;
use super::word::FOREVER;
use crate::base::limits;
use crate::pg::clock;
use pgrx::pg_sys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// Stands for the queue of a bit that several queues have used.
const SEVERAL: i32 = -1;
/// Items that have become free in a queue: how many, or in which partitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Food {
    count: u32,
    partitions: [u64; WORDS],
    bound: bool,
}

impl Food {
    /// Food for all sessions of a bit.
    pub const ALL: Food = Food { count: u32::MAX, partitions: [u64::MAX; WORDS], bound: false };

    /// Returns the food of `count` items; `partition`: theirs, in a queue that has partitions.
    pub fn of(count: usize, partition: Option<i32>) -> Food {
        let mut partitions = [0; WORDS];
        if let Some(partition) = partition {
            let (word, bit) = place_of(partition);
            partitions[word] |= bit;
        }
        Food { count: u32::try_from(count).unwrap_or(u32::MAX), partitions, bound: partition.is_some() }
    }

    pub fn add(&mut self, more: Food) {
        self.count = self.count.saturating_add(more.count);
        self.bound |= more.bound;
        self.partitions.iter_mut().zip(more.partitions).for_each(|(of, more)| *of |= more);
    }
}

fn place_of(partition: i32) -> (usize, u64) {
    let number = partition.cast_unsigned() as usize % PARTITIONS;
    (number / u64::BITS as usize, 1 << (number % u64::BITS as usize))
}

/// Converts a time in microseconds since 2000 to the clock of shared memory. The result is no earlier, so a look at
/// that time finds the item due.
fn on_our_clock(at: i64) -> u64 {
    // SAFETY: no preconditions
    let left = at.saturating_sub(unsafe { pg_sys::GetCurrentTimestamp() });
    clock::now().saturating_add(u64::try_from(left).unwrap_or(0)).clamp(1, FOREVER)
}

fn bit(queue: i32) -> u32 {
    1 << (queue.cast_unsigned() % u32::BITS)
}

/// Takes a bit away from a session's bits. Returns the former bits if the bit was among them.
fn take(bits: &Counted, is_mine: impl Fn() -> bool, bit: u32) -> Option<u64> {
    let bit = u64::from(bit);
    bits.change(is_mine, |bits| (bits & bit != 0).then_some(bits & !bit))
}

impl Hunger {
    /// Notes that something becomes due in a queue. Returns whether that is sooner than all noted before.
    fn until(&self, queue: i32, at: u64, is_mine: impl Fn() -> bool) -> bool {
        let sooner = |due: u64| (due == 0 || at < due).then_some(at);
        let is_first = self.due.change(&is_mine, sooner).is_some();
        if is_first {
            self.queue.change(&is_mine, |_| Some(queue.cast_unsigned().into()));
        }
        is_first
    }
}

impl Shared {
    /// Notes that a session has found less than it asked for in the partitions that it lists, or in all. `due`: when
    /// the session will find something, in microseconds since 2000.
    pub fn hunger(&self, database: &Database, at: SlotRef, queue: i32, partitions: Option<&[i32]>, due: Option<i64>) {
        let hunger = &self.hunger[at.index as usize];
        // Partitions stay noted, since other queues may have the same ones; at worst the session is woken in vain.
        if partitions.is_none() {
            hunger.partitions.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
        }
        for partition in partitions.into_iter().flatten() {
            let (word, bit) = place_of(*partition);
            if hunger.partitions[word].load(Ordering::Relaxed) & bit == 0 {
                hunger.partitions[word].fetch_or(bit, Ordering::AcqRel);
            }
        }
        let queue_of_bit = &database.queues[bit(queue).trailing_zeros() as usize];
        if queue_of_bit.compare_exchange(0, queue, Ordering::AcqRel, Ordering::Acquire).is_err_and(|of| of != queue) {
            queue_of_bit.store(SEVERAL, Ordering::Release);
        }
        // The count comes before the bit can be found, so no look skips the bit.
        self.hungry_in(at.index).fetch_add(1, Ordering::AcqRel);
        let add = |bits: u64| Some(bits | u64::from(bit(queue)));
        if hunger.bits.change(|| self.is_still(at), add) != Some(0) {
            self.hungry_in(at.index).fetch_sub(1, Ordering::AcqRel);
        }
        database.hungry.fetch_or(bit(queue), Ordering::AcqRel);
        if let Some(due) = due.map(on_our_clock)
            && hunger.until(queue, due, || self.is_still(at))
        {
            self.due_at(at, due);
        }
    }

    /// Sets the time to wake the sessions that wait for items of a queue: items of that queue become due at `due`.
    pub fn feed_at(&self, database: &Database, queue: i32, due: i64) {
        if database.hungry.load(Ordering::Acquire) & bit(queue) == 0 {
            return;
        }
        let (due, oid, mut sooner) = (on_our_clock(due), database.oid.load(Ordering::Relaxed), false);
        for at in self.hungry(bit(queue), oid) {
            if self.hunger[at.index as usize].until(queue, due, || self.is_still(at)) {
                self.block_of(at).lower(due);
                sooner = true;
            }
        }
        if sooner {
            self.anticipate(oid, due);
        }
    }

    /// Returns when something that a session waits for becomes due.
    pub(super) fn meal_of(&self, at: SlotRef) -> u64 {
        let due = self.hunger[at.index as usize].due.get();
        if due == 0 { FOREVER } else { due }
    }

    /// Wakes the sessions of a database for which something has become due. Returns the queues in which it has.
    pub fn feed_due(&self, database: &Database, now: u64) -> BTreeSet<i32> {
        let (oid, mut queues) = (database.oid.load(Ordering::Relaxed), BTreeSet::new());
        self.each_due(now, now, |at, home, _, _| {
            let hunger = &self.hunger[at.index as usize];
            let queue = hunger.queue.get() as i32;
            let past = |due: u64| (due != 0 && due <= now).then_some(0);
            let is_due = || hunger.due.change(|| self.is_still(at), past).is_some();
            if home.database == oid && is_due() {
                self.bump(at);
                queues.insert(queue);
            }
        });
        queues
    }

    /// Resets the hunger of a slot: its new session is not hungry.
    pub(super) fn is_fed(&self, index: u32, count: u8) {
        let hunger = &self.hunger[index as usize];
        if hunger.bits.begin(count, 0) != 0 {
            self.hungry_in(index).fetch_sub(1, Ordering::AcqRel);
        }
        for number in [&hunger.queue, &hunger.due, &hunger.waiting, &hunger.woken] {
            number.begin(count, 0);
        }
        hunger.partitions.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Notes that a call begins or ends its sleep in session_wait.
    pub(super) fn sleeps(&self, at: SlotRef, begins: bool) {
        let count = |calls: u64| if begins { Some(calls + 1) } else { calls.checked_sub(1) };
        // A stand-in has no hunger.
        if let Some(hunger) = self.hunger.get(at.index as usize) {
            hunger.waiting.change(|| self.is_still(at), count);
        }
    }

    /// Notes that a session looks for items of a queue: it sees the items for which it was woken.
    pub fn looks(&self, database: &Database, at: SlotRef, queue: i32) {
        let bit = bit(queue);
        if take(&self.hunger[at.index as usize].woken, || self.is_still(at), bit).is_some() {
            let woken = &database.woken[bit.trailing_zeros() as usize];
            woken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| count.checked_sub(1)).ok();
        }
    }

    /// Wakes sessions that wait for items of a queue, since items have become free there. Returns whether there were
    /// such sessions.
    pub fn feed(&self, database: &Database, queue: i32, food: Food) -> bool {
        let bit = bit(queue);
        // A session that is woken for another queue of the same bit does not look into this one.
        let is_known = database.queues[bit.trailing_zeros() as usize].load(Ordering::Acquire) == queue;
        self.feed_bit(database, bit, if is_known { food } else { Food::ALL })
    }

    fn feed_bit(&self, database: &Database, bit: u32, food: Food) -> bool {
        // A session sets its bit, and then looks again if a floor was lowered meanwhile. This caller has just lowered
        // one.
        if database.hungry.load(Ordering::Acquire) & bit == 0 {
            return false;
        }
        let until = clock::now() + limits::HUNGER_PATIENCE;
        if database.patience().is_none() {
            // A time that is still set comes from earlier sessions, which have claimed since.
            database.patience.store(until, Ordering::Release);
        }
        let (oid, mut any, mut woken) = (database.oid.load(Ordering::Relaxed), false, 0);
        for at in self.hungry(bit, oid) {
            let hunger = &self.hunger[at.index as usize];
            let sleeps = hunger.waiting.get() > 0;
            let eats = || {
                let noted = hunger.partitions.iter().map(|word| word.load(Ordering::Acquire));
                noted.zip(food.partitions).any(|(noted, partitions)| noted & partitions != 0)
            };
            let is_meant = if food.bound { eats() } else { !sleeps || woken < food.count };
            // The process that has taken the bit away wakes the session.
            if !is_meant || !self.is_not_hungry(at, bit) {
                continue;
            }
            any = true;
            // The session is noted as woken before it wakes, and looks.
            if sleeps && !food.bound && food.count < u32::MAX && self.look(at).is_some_and(|standing| standing.alive())
            {
                woken += 1;
                self.has_woken(database, at, bit);
            }
            self.bump(at);
        }
        if woken > 0 {
            // Another process may have reset the time meanwhile (see `feed_others`).
            database.patience.compare_exchange(0, until, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
        any
    }

    /// Notes that a session is woken for items of a bit, and has not looked yet.
    fn has_woken(&self, database: &Database, at: SlotRef, bit: u32) {
        let add = |bits: u64| Some(bits | u64::from(bit));
        if self.hunger[at.index as usize].woken.change(|| self.is_still(at), add).is_some() {
            database.woken[bit.trailing_zeros() as usize].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Wakes the next sessions if the sessions woken before have not claimed in time.
    pub fn feed_others(&self, database: &Database, now: u64) {
        let until = database.patience.load(Ordering::Acquire);
        let is_time = until != 0 && until <= now;
        if !is_time || database.patience.compare_exchange(until, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let oid = database.oid.load(Ordering::Relaxed);
        for (number, woken) in (0u32..).zip(&database.woken) {
            let count = woken.swap(0, Ordering::AcqRel);
            if count > 0 {
                // The late sessions no longer count: if one of them looks after all, it does not lower the count of the
                // next sessions.
                for (slot, hunger) in self.slots.iter().zip(self.hunger).take(self.used() as usize) {
                    take(&hunger.woken, || slot.home().database == oid, 1 << number);
                }
                self.feed_bit(database, 1 << number, Food { count, ..Food::default() });
            }
        }
    }

    /// Returns how many sessions in the slot's block are hungry, or about to be.
    fn hungry_in(&self, index: u32) -> &AtomicU32 {
        &self.hungry[index as usize / block::SLOTS]
    }

    /// Returns the sessions of a database that have a bit.
    fn hungry(&self, bit: u32, database: u32) -> impl Iterator<Item = SlotRef> {
        let blocks = self.hungry.iter().zip(self.hunger.chunks(block::SLOTS)).zip((0..).step_by(block::SLOTS));
        let hungry = blocks.filter(|((count, _), _)| count.load(Ordering::Acquire) != 0);
        let slots = hungry.flat_map(|((_, block), first)| (first..).zip(block));
        slots.filter(move |(_, hunger)| hunger.bits.get() & u64::from(bit) != 0).filter_map(move |(index, _)| {
            let slot = &self.slots[index as usize];
            (slot.home().database == database).then(|| SlotRef { index, session: slot.session() })
        })
    }

    /// Takes a bit away from a session. Returns whether the session had it.
    fn is_not_hungry(&self, at: SlotRef, bit: u32) -> bool {
        let before = take(&self.hunger[at.index as usize].bits, || self.is_still(at), bit);
        if before == Some(bit.into()) {
            self.hungry_in(at.index).fetch_sub(1, Ordering::AcqRel);
        }
        before.is_some()
    }

    /// Wakes all hungry sessions of all queues: more items have become free than could be noted.
    pub fn feed_all(&self, database: &Database) {
        for queue in (0..).take(u32::BITS as usize) {
            self.feed(database, queue, Food::ALL);
        }
    }
}
