//! Hunger: which sessions wait for work items.
//!
//! A claim that finds less than it asked for says so here, for the queue's bit (of 32, so queues may share one). Whoever commits items wakes
//! the sessions that have the bit, by their revisions, and takes it away. The claimer looks for items again once it has the bit, if the
//! lane's turn has changed meanwhile: either it sees what was just added, or whoever adds sees the bit. Nothing here needs the worker.

use super::Shared;
use super::databases::Database;
use super::slots::SlotRef;
use std::sync::atomic::Ordering;

fn bit(queue: i32) -> u32 {
    1 << (queue.cast_unsigned() % u32::BITS)
}

impl Shared {
    pub fn hunger(&self, database: &Database, at: SlotRef, queue: i32) {
        self.hunger[at.index as usize].fetch_or(bit(queue), Ordering::AcqRel);
        database.hungry.fetch_or(bit(queue), Ordering::AcqRel);
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
        for (index, hunger) in (0..self.used()).zip(self.hunger) {
            let slot = &self.slots[index as usize];
            if hunger.load(Ordering::Acquire) & bit != 0 && slot.home().database == oid {
                hunger.fetch_and(!bit, Ordering::AcqRel);
                self.bump(SlotRef { index, session: slot.session() });
            }
        }
        true
    }
}
