//! Prepared transactions whose end is watched for, as PostgreSQL calls no callback when they end.
//!
//! A commit wakes the sessions whose revision grows, and those that wait for items that become free. A PREPARE notes
//! here which these are, and the launcher wakes them at the end, be it a commit or a rollback. All sessions of the
//! database are woken if there is no room to note them, or if the transaction was prepared before the last start.
//!
//! The counts of the transaction also wait here, until it is committed.

use super::counters::{AT_COMMIT, Counter, Span};
use super::databases::Database;
use super::parts::{Concerned, Pending};
use super::shared::Shared;
use super::slot::SlotRef;
use crate::pg::clock;
use pgrx::Uuid;
use std::sync::atomic::Ordering;

/// Which sessions the end of a prepared transaction concerns, beside those that are noted one by one.
pub const NONE: u32 = 0;
pub const ALL: u32 = 1;
/// Sessions that wait for work items.
pub const HUNGRY: u32 = 2;

/// Marks an entry that a process is writing; no transaction has this number.
const BEING_WRITTEN: u64 = 1;

fn number(database: &Database, xid: u32) -> u64 {
    u64::from(database.oid.load(Ordering::Relaxed)) << 32 | u64::from(xid)
}

impl Shared {
    /// Watches for the end of a prepared transaction that is not this backend's. If no entry is free, the database is
    /// looked through as after a start.
    pub fn watch_prepared(&self, database: &Database, xid: u32) {
        self.watch(database, number(database, xid), ALL);
    }

    /// Watches for the end of this backend's transaction, which is being prepared, and keeps what it counts.
    /// `sessions` are those whose revision grows if it is committed. If no entry is free, the counts are also lost.
    pub fn watch_own(
        &self,
        database: &Database,
        xid: u32,
        (counted, free_since): (&[u64; AT_COMMIT], u64),
        sessions: impl Iterator<Item = SlotRef>,
        whom: u32,
    ) {
        let transaction = number(database, xid);
        let Some(pending) = self.watch(database, transaction, whom) else { return };
        // This is stored before the counts: a process that finds the counts also finds this time.
        pending.free_since.store(free_since, Ordering::Relaxed);
        for (kept, counted) in pending.counted.iter().zip(counted) {
            if *counted > 0 {
                kept.store(u64::from(xid) << 32 | (*counted).min(u32::MAX.into()), Ordering::Release);
            }
        }
        // PostgreSQL lets no process end the transaction before this callback returns.
        for at in sessions {
            if at.is_stand_in() || !self.note_concerned(transaction, at) {
                pending.whom.fetch_or(ALL, Ordering::Release);
                return;
            }
        }
    }

    /// Returns the entry of the transaction, if it has one.
    fn watch(&self, database: &Database, transaction: u64, whom: u32) -> Option<&'static Pending> {
        let is_it = |known: &&Pending| known.transaction.load(Ordering::Relaxed) == transaction;
        if let Some(known) = self.pending.iter().find(is_it) {
            return Some(known);
        }
        let take = |entry: &&Pending| {
            entry.transaction.compare_exchange(0, transaction, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let taken = self.pending.iter().find(take);
        match taken {
            Some(entry) => entry.whom.store(whom, Ordering::Release),
            None => {
                database.flag(super::databases::BOOT);
                self.wake_launcher();
            }
        }
        taken
    }

    fn note_concerned(&self, transaction: u64, at: SlotRef) -> bool {
        let take = |entry: &&Concerned| {
            entry.transaction.compare_exchange(0, BEING_WRITTEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(entry) = self.concerned.iter().find(take) else { return false };
        let [high, low] = at.halves();
        entry.slot.store(at.index, Ordering::Relaxed);
        entry.session[0].store(high, Ordering::Relaxed);
        entry.session[1].store(low, Ordering::Relaxed);
        entry.transaction.store(transaction, Ordering::Release);
        true
    }

    /// Adds what a prepared transaction counts to the counters, once, if it was committed. The entry may belong to the
    /// next transaction by now; then this takes nothing from it.
    fn settle(&self, entry: &Pending, transaction: u64, committed: bool) {
        let (mut counted, free_since) = ([0; AT_COMMIT], entry.free_since.load(Ordering::Acquire));
        for (kept, counted) in entry.counted.iter().zip(&mut counted) {
            let read = kept.load(Ordering::Acquire);
            let is_its = read >> 32 == u64::from(transaction as u32);
            if is_its && kept.compare_exchange(read, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                *counted = u64::from(read as u32);
            }
        }
        if committed && let Some(database) = self.known_database((transaction >> 32) as u32) {
            database.counters.add_committed(&counted);
            // One span is kept for all hand-overs of a prepared transaction: the longest.
            if free_since != 0 {
                let taken = clock::now().saturating_sub(free_since);
                database.counters.add_span(Span::HandOver, taken, counted[Counter::HandOvers.at_commit()]);
            }
        }
    }

    /// Adds the counts of those prepared transactions that have been committed by now to the counters. `outcome`
    /// returns whether one was committed; `None` while it is open.
    pub fn settle_prepared(&self, outcome: impl Fn(u32) -> Option<bool>) {
        for entry in self.pending {
            let transaction = entry.transaction.load(Ordering::Acquire);
            if transaction != 0
                && let Some(committed) = outcome(transaction as u32)
            {
                self.settle(entry, transaction, committed);
            }
        }
    }

    /// Returns whether the end of any prepared transaction of a database is watched for.
    pub fn watches_prepared(&self, database: &Database) -> bool {
        let oid = u64::from(database.oid.load(Ordering::Relaxed));
        self.pending.iter().any(|known| known.transaction.load(Ordering::Acquire) >> 32 == oid)
    }

    /// Forgets the prepared transactions that have ended, and wakes the sessions noted for them. `visit` gets each
    /// one's database, and which other sessions it concerns. `outcome` is that of [`Shared::settle_prepared`]. Returns
    /// whether any transaction is left.
    pub fn each_ended_prepared(&self, outcome: impl Fn(u32) -> Option<bool>, mut visit: impl FnMut(u32, u32)) -> bool {
        let mut left = false;
        for entry in self.pending {
            let transaction = entry.transaction.load(Ordering::Acquire);
            if transaction == 0 {
                continue;
            }
            if let Some(committed) = outcome(transaction as u32) {
                self.settle(entry, transaction, committed);
                let whom = entry.whom.load(Ordering::Acquire);
                entry.transaction.store(0, Ordering::Release);
                visit((transaction >> 32) as u32, whom);
                self.wake_concerned(transaction);
            } else {
                left = true;
            }
        }
        left
    }

    fn wake_concerned(&self, transaction: u64) {
        for entry in self.concerned.iter().filter(|entry| entry.transaction.load(Ordering::Acquire) == transaction) {
            let [high, low] = [&entry.session[0], &entry.session[1]].map(|half| half.load(Ordering::Relaxed));
            let session = Uuid::from_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
            let at = SlotRef { index: entry.slot.load(Ordering::Relaxed), session };
            entry.transaction.store(0, Ordering::Release);
            self.bump(at);
        }
    }
}
