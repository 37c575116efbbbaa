//! News of an outbox: a session watches one table, and the commit of rows that `position_next` numbers wakes it.
//!
//! **Watch.** A session has one watch: the oid of its table, beside its slot. It ends with the session, and with shared
//! memory: a take-over does not inherit it, and after a restart the client watches again.
//!
//! **The writer.** A transaction that has drawn positions reads one word of its database after its commit. Unless that
//! word says that sessions may watch, this is all. Otherwise it walks the blocks of slots that have watches. It tells
//! the sessions whose tables it has locked as a write does, by its transaction id. A watch keeps the least and the
//! greatest id, so many commits are one news.
//!
//! **The waiter.** Rows are readable once all older transactions have ended, at `position_horizon`. Such a transaction
//! calls nothing of ours. So no writer raises the revision. The waiting call does: it compares the least id with the
//! oldest open transaction, at each wake-up, and every few milliseconds while no news is readable yet (at first after
//! 1 ms, then twice as long each time, up to [`limits::NEWS_AGAIN`]). Once some news is readable, it takes that away
//! and raises the revision. If the greatest id is not readable then, the oldest open transaction becomes the least id:
//! transactions that overlap without end must not hold back the news of those that have ended. The next news is taken
//! [`limits::NEWS_APART`] later. While no session waits, no process looks; the next wait finds the news, also if its
//! timeout is zero or it gets no place.
//!
//! **No news is missed.** A client takes a revision, reads up to the horizon, and waits. A row that it did not read was
//! committed later, or was above the horizon; in both cases its id is noted, and the wait answers once it is readable.
//! A new watch begins with the ids from the oldest open transaction to the last one that was given. So it also covers
//! transactions that committed, or were prepared, before the watch, and are not readable yet. PREPARE notes the news of
//! all watches of the database, since nothing of ours runs at COMMIT PREPARED. So does a raise of positions: some rows
//! are then readable only once all transactions from before it have ended. A standby has no watches. A client may wake
//! in vain, and reads on.
//!
//! **Hints** say that a watch may exist: one for each database, one for each block of slots. A watch sets its oid, then
//! the hints, then takes its first ids. A writer commits, then reads the hints. Between both is a fence: so the writer
//! sees the hint, or the watch begins when the writer has ended. A writer that finds no living watch clears a hint,
//! unless it has been set since the writer read it: each set makes another version. A hint that only watches of one
//! table have set names that table, and writers of other tables pass by.

use super::block;
use super::databases::Database;
use super::shared::Shared;
use super::slot::SlotRef;
use super::watch::{Watch, only_table};
use super::word::State;
use crate::base::limits;
use crate::pg::{clock, transaction};
use std::sync::atomic::{Ordering, fence};

/// For how many tables a writer remembers whether it has written them, as a power of two, while it walks the watches.
const KNOWN_BITS: u32 = 6;

/// When a waiting call looks again whether news is readable.
pub(super) struct Again(u64);

impl Again {
    pub(super) fn new() -> Again {
        Again(limits::NEWS_FIRST)
    }

    pub(super) fn next(&mut self) -> u64 {
        let span = self.0;
        self.0 = (span * 2).min(limits::NEWS_AGAIN);
        span
    }
}

impl Shared {
    /// Lets the session watch a table; zero for none.
    pub fn watch_table(&self, database: &Database, at: SlotRef, table: u32) {
        // A stand-in has no revision, and no watch.
        let Some(watch) = self.watches.get(at.index as usize) else { return };
        let other = |of: u64| (of != u64::from(table)).then_some(table.into());
        if watch.table.change(|| self.is_still(at), other).is_none() {
            return;
        }
        if table == 0 {
            watch.forget(|| self.is_still(at));
            return;
        }
        self.watched[at.index as usize / block::SLOTS].set(table);
        database.watched.set(table);
        fence(Ordering::SeqCst);
        let first = transaction::oldest_open_id().cast_unsigned();
        let last = transaction::next_full_id().cast_unsigned() - 1;
        watch.add(|| self.is_still(at), first.min(last), last);
    }

    /// Ends the watch of a slot: its new session has none.
    pub(super) fn end_watch(&self, index: u32, count: u8) {
        self.watches[index as usize].begin(count);
    }

    /// Tells the sessions that watch a table which the transaction `xid` has written.
    pub fn tell_news(&self, database: &Database, xid: i64, has_written: impl Fn(u32) -> bool) {
        fence(Ordering::SeqCst);
        let Some(read) = database.watched.read() else { return };
        let mut known = [(0, false); 1 << KNOWN_BITS];
        let mut writes = |table: u32| {
            // Spreads oids that have a stride.
            let at = &mut known[(table.wrapping_mul(0x9E37_79B1) >> (u32::BITS - KNOWN_BITS)) as usize];
            if at.0 != table {
                *at = (table, has_written(table));
            }
            at.1
        };
        if only_table(read).is_some_and(|table| !writes(table)) {
            return;
        }
        let (oid, mut any) = (database.oid.load(Ordering::Relaxed), false);
        for (block, (hint, watches)) in self.watched.iter().zip(self.watches.chunks(block::SLOTS)).enumerate() {
            let Some(read) = hint.read() else { continue };
            if only_table(read).is_some_and(|table| !writes(table)) {
                any = true;
                continue;
            }
            let mut here = false;
            for (index, watch) in (block * block::SLOTS..).zip(watches) {
                let table = watch.table.get() as u32;
                let slot = &self.slots[index];
                if table == 0 || !matches!(slot.word().state(), State::Alive | State::Frozen) {
                    continue;
                }
                here = true;
                if slot.home().database != oid {
                    continue;
                }
                any = true;
                let at = SlotRef { index: index as u32, session: slot.session() };
                let xid = xid.cast_unsigned();
                if writes(table) && watch.add(|| self.is_still(at), xid, xid) {
                    self.notice(at);
                }
            }
            if !here {
                hint.clear(read);
            }
        }
        if !any {
            database.watched.clear(read);
        }
    }

    /// Raises the session's revision if it has readable news. Returns whether it has news that is not readable yet.
    pub(super) fn look_for_news(&self, at: SlotRef) -> bool {
        !self.takes_news(at) && self.watches.get(at.index as usize).is_some_and(Watch::has_news)
    }

    /// Raises the session's revision if it has readable news, and returns whether it did.
    pub fn takes_news(&self, at: SlotRef) -> bool {
        let Some(watch) = self.watches.get(at.index as usize) else { return false };
        let is_taken = watch.has_news() && {
            let open = transaction::oldest_open_id().cast_unsigned();
            watch.take(|| self.is_still(at), open, clock::now())
        };
        if is_taken {
            self.bump(at);
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_and_stay_prompt() {
        let mut again = Again::new();
        let spans: Vec<u64> = (0..8).map(|_| again.next()).collect();
        assert_eq!((spans[0], spans[7]), (limits::NEWS_FIRST, limits::NEWS_AGAIN));
        assert!(spans.windows(2).all(|two| two[0] <= two[1] && two[1] <= 2 * two[0]));
    }
}
