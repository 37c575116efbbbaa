//! Hunger: which sessions wait for work items.
//!
//! A claim that finds less than it asked for says so here, for the queue's bit (of 32, so queues may share one). Whoever commits items wakes
//! the sessions that have the bit, by their revisions, and takes it away. The claimer looks for items again once it has the bit, if the
//! lane's turn has changed meanwhile: either it sees what was just added, or whoever adds sees the bit. Nothing here needs the worker.
//!
//! **Until when.** Items become due without anybody doing anything. So a claimer notes the first time at which one that it has seen will
//! be, and whoever commits one for later notes its time for those who have the bit. At that time the worker wakes the session and tells
//! listeners; it looks at nothing else for that, however many items there are for later, and in how many queues. Nobody has to be told of
//! what nobody waits for, and each claim looks for itself; so after a restart, when no session is hungry, nothing is to be found again.
//! One time is kept for each session, the earliest, with the queue that it is for.
//!
//! Those who are hungry are few among many sessions. So of each [`block`] of slots it is counted how many are, or are just about to be, and
//! blocks without any are passed over.

use super::databases::Database;
use super::slots::SlotRef;
use super::word::FOREVER;
use super::{Shared, block, clock};
use pgrx::pg_sys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Of a session: the bits of queues, and when something becomes due in one of them, zero for never.
#[repr(C)]
pub struct Hunger {
    bits: AtomicU32,
    queue: AtomicI32,
    due: AtomicU64,
}

/// A time in microseconds since 2000, by the clock of shared memory: no sooner, so that whoever then looks finds the item due.
fn on_our_clock(at: i64) -> u64 {
    // SAFETY: no preconditions
    let left = at.saturating_sub(unsafe { pg_sys::GetCurrentTimestamp() });
    clock::now().saturating_add(u64::try_from(left).unwrap_or(0)).max(1)
}

fn bit(queue: i32) -> u32 {
    1 << (queue.cast_unsigned() % u32::BITS)
}

impl Hunger {
    /// Something becomes due in a queue. Whether that is sooner than anything else.
    fn until(&self, queue: i32, at: u64) -> bool {
        let sooner = |due: u64| (due == 0 || at < due).then_some(at);
        let is_first = self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, sooner).is_ok();
        if is_first {
            self.queue.store(queue, Ordering::Release);
        }
        is_first
    }
}

impl Shared {
    /// A session has found less than it asked for, and that something becomes due at a time, in microseconds since 2000.
    pub fn hunger(&self, database: &Database, at: SlotRef, queue: i32, due: Option<i64>) {
        let hunger = &self.hunger[at.index as usize];
        // Before the bit can be found, so that nobody passes over it.
        self.hungry_in(at.index).fetch_add(1, Ordering::AcqRel);
        if hunger.bits.fetch_or(bit(queue), Ordering::AcqRel) != 0 {
            self.hungry_in(at.index).fetch_sub(1, Ordering::AcqRel);
        }
        database.hungry.fetch_or(bit(queue), Ordering::AcqRel);
        if let Some(due) = due.map(on_our_clock)
            && hunger.until(queue, due)
        {
            self.due_at(at, due);
        }
    }

    /// Items of a queue become due at a time: those who wait for them are to be woken then.
    pub fn feed_at(&self, database: &Database, queue: i32, due: i64) {
        if database.hungry.load(Ordering::Acquire) & bit(queue) == 0 {
            return;
        }
        let (due, oid, mut sooner) = (on_our_clock(due), database.oid.load(Ordering::Relaxed), false);
        for at in self.hungry(bit(queue), oid) {
            if self.hunger[at.index as usize].until(queue, due) {
                self.block_of(at).lower(due);
                sooner = true;
            }
        }
        if sooner {
            self.anticipate(oid, due);
        }
    }

    /// When something becomes due that a session waits for.
    pub(super) fn meal_of(&self, at: SlotRef) -> u64 {
        let due = self.hunger[at.index as usize].due.load(Ordering::Acquire);
        if due == 0 { FOREVER } else { due }
    }

    /// Wakes the sessions of a database for whom something has become due, and says in which queues.
    pub fn feed_due(&self, database: &Database, now: u64) -> BTreeSet<i32> {
        let (oid, mut queues) = (database.oid.load(Ordering::Relaxed), BTreeSet::new());
        self.each_due(now, now, |at, home, _, _| {
            let hunger = &self.hunger[at.index as usize];
            let queue = hunger.queue.load(Ordering::Acquire);
            let past = |due: u64| (due != 0 && due <= now).then_some(0);
            let is_due = || hunger.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, past).is_ok();
            if home.database == oid && is_due() {
                self.bump(at);
                queues.insert(queue);
            }
        });
        queues
    }

    /// A slot has a new session, which is not hungry.
    pub(super) fn is_fed(&self, index: u32) {
        let hunger = &self.hunger[index as usize];
        self.is_not_hungry(index, u32::MAX);
        hunger.due.store(0, Ordering::Release);
    }

    /// Items have become free in a queue: wakes those who wait for them. Whether there was anybody.
    pub fn feed(&self, database: &Database, queue: i32) -> bool {
        let bit = bit(queue);
        // Whoever is hungry has noted it under the lock that lowering a floor has just taken, or will look again.
        if database.hungry.load(Ordering::Acquire) & bit == 0 {
            return false;
        }
        database.hungry.fetch_and(!bit, Ordering::AcqRel);
        let oid = database.oid.load(Ordering::Relaxed);
        for at in self.hungry(bit, oid) {
            self.is_not_hungry(at.index, bit);
            self.bump(at);
        }
        true
    }

    /// How many sessions of the block of a slot have any bit, or are about to.
    fn hungry_in(&self, index: u32) -> &AtomicU32 {
        &self.hungry[index as usize / block::SLOTS]
    }

    /// The sessions of a database that have a bit.
    fn hungry(&self, bit: u32, database: u32) -> impl Iterator<Item = SlotRef> {
        let blocks = self.hungry.iter().zip(self.hunger.chunks(block::SLOTS)).zip((0..).step_by(block::SLOTS));
        let hungry = blocks.filter(|((count, _), _)| count.load(Ordering::Acquire) != 0);
        let slots = hungry.flat_map(|((_, block), first)| (first..).zip(block));
        slots.filter(move |(_, hunger)| hunger.bits.load(Ordering::Acquire) & bit != 0).filter_map(move |(index, _)| {
            let slot = &self.slots[index as usize];
            (slot.home().database == database).then(|| SlotRef { index, session: slot.session() })
        })
    }

    /// Takes bits away from a session.
    fn is_not_hungry(&self, index: u32, bits: u32) {
        let before = self.hunger[index as usize].bits.fetch_and(!bits, Ordering::AcqRel);
        if before != 0 && before & !bits == 0 {
            self.hungry_in(index).fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The same for all queues: more has become free than anybody has noted.
    pub fn feed_all(&self, database: &Database) {
        for queue in (0..).take(u32::BITS as usize) {
            self.feed(database, queue);
        }
    }
}
