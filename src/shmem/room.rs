//! Room for databases: which database gives its entry up when all regular entries are taken (see [`super::entries`]).
//!
//! An entry is for a database in use. Such a database has living or dead sessions, a resource to be judged, a prepared
//! transaction whose end is watched for, a waiting call, or listeners that ask to be notified. An entry is also kept
//! while a worker is there, or the database must still be looked into. Any other database gives its entry up to one
//! that needs an entry. The database loses little by that. Its counters begin anew, and what was known of fences and
//! positions is read again. The launcher remembers when the first of its kept rows is due, and then has a worker look
//! for it.
//!
//! **A process in a call** refers to the entry, and is in a transaction. So the entry is first marked as leaving. It is
//! given up only if no process is in a transaction in that database after that. A call that begins later finds the mark
//! and removes it, under the lock under which the entry is given up. (The call is in a transaction before it reads the
//! mark: in between it takes its snapshot, under a lock of PostgreSQL's. A commit also makes notes when its transaction
//! is over. The notes are about sessions, which keep the entry, or about work that the next look into the database
//! finds.)
//!
//! **A call that finds no room** waits for it while some regular entry belongs to a database that has neither living
//! sessions nor waiting calls. In such a database a worker removes the remaining rows and soon leaves, and most
//! transactions are short.

use super::databases::Database;
use super::latch::set_latch;
use super::shared::{Lock, Shared};
use super::word::State;
use crate::base::{limits, settings};
use crate::pg::clock;
use pgrx::pg_sys;
use std::collections::HashSet;
use std::sync::atomic::{Ordering, fence};

impl Shared {
    /// Returns the databases that have sessions, resources to be judged, or prepared transactions.
    fn with_rows(&self) -> HashSet<u32> {
        let mut found = HashSet::new();
        self.each(clock::now(), |_, home, word| {
            if word.state() != State::Gone {
                found.insert(home.database);
            }
        });
        self.each_dirty(|database, _| {
            found.insert(database);
        });
        found
    }

    fn is_in_use(&self, database: &Database, with_rows: &HashSet<u32>) -> bool {
        self.is_needed(database, with_rows) || database.is_busy()
    }

    /// Returns whether a database is in `some`, or is used by more than a worker.
    fn is_needed(&self, database: &Database, some: &HashSet<u32>) -> bool {
        let oid = database.oid.load(Ordering::Acquire);
        let is_asked = database.waiting.calls() != 0 || database.is_listened_to();
        some.contains(&oid) || is_asked || self.watches_prepared(database)
    }

    /// Returns whether a database has rows to look after, or is used by more than a worker.
    pub(super) fn has_rows(&self, database: &Database) -> bool {
        self.is_needed(database, &self.with_rows())
    }

    /// Returns how many databases are in use, and how many have a regular entry or are in use. After a start those in
    /// use have the entry of a visit until another visit, or a call, makes it a regular one.
    pub fn databases_in_use(&self) -> (usize, usize) {
        let with_rows = self.with_rows();
        let (mut in_use, mut taken) = (0, 0);
        for database in self.databases.iter().filter(|database| database.oid.load(Ordering::Acquire) != 0) {
            let (needed, visited) = (self.is_needed(database, &with_rows), database.is_visited());
            let used = needed || database.is_busy() && !visited;
            in_use += usize::from(used);
            taken += usize::from(used || !visited);
        }
        (in_use, taken)
    }

    /// Returns the index of a database's entry, once another database has given up its entry; `None` if none does in
    /// time.
    pub(super) fn wait_for_room(&self, oid: u32) -> Option<usize> {
        let until = clock::now() + limits::ROOM_PATIENCE;
        loop {
            // Other processes may take the entry that was given up.
            for _ in 0..self.entries() {
                let made = self.make_room();
                let index = self.register(oid);
                if index.is_some() {
                    return index;
                }
                if !made {
                    break;
                }
            }
            let now = clock::now();
            if now >= until || !settings::WORKER.get() || !self.is_room_to_come() {
                return None;
            }
            self.header.room_wanted.store(now + 10 * limits::ROOM_PAUSE, Ordering::Release);
            self.wake_launcher();
            pgrx::check_for_interrupts!();
            clock::pause(limits::ROOM_PAUSE);
        }
    }

    /// Returns whether calls wait for a database to give up its entry.
    pub fn is_room_wanted(&self, now: u64) -> bool {
        self.header.room_wanted.load(Ordering::Acquire) > now
    }

    /// Takes the entry of a database that is not in use. Returns whether there was one.
    pub(super) fn make_room(&self) -> bool {
        let with_rows = self.with_rows();
        let entries = self.databases.len();
        // Each search begins at the next entry, so that not always the same database gives up its entry.
        let first = self.header.room_hand.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn = (0..entries).map(|step| &self.databases[(first + step) % entries]);
        let mut others = in_turn.filter(|database| !database.is_visited() && !self.is_in_use(database, &with_rows));
        others.any(|database| self.give_up(database))
    }

    /// Returns whether some database keeps its regular entry only for a worker that is about to leave, or for a
    /// transaction. Wakes the workers there, so that a worker with nothing to do leaves.
    fn is_room_to_come(&self) -> bool {
        let mut living = HashSet::new();
        self.each(clock::now(), |_, home, word| {
            if matches!(word.state(), State::Alive | State::Frozen) {
                living.insert(home.database);
            }
        });
        let is_passing = |database: &&Database| {
            let has_entry = database.oid.load(Ordering::Acquire) != 0 && !database.is_visited();
            has_entry && !self.is_needed(database, &living)
        };
        let mut passing = self.databases.iter().filter(is_passing).peekable();
        let any = passing.peek().is_some();
        passing.for_each(|database| set_latch(&database.worker));
        any
    }

    fn give_up(&self, database: &Database) -> bool {
        let oid = database.oid.load(Ordering::Acquire);
        if oid == 0 {
            return false;
        }
        database.leaving.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_in_a_transaction(oid) && !self.is_in_use(database, &self.with_rows()) {
            let _held = self.lock(Lock::Alloc, true);
            if database.oid.load(Ordering::Relaxed) == oid
                && database.leaving.load(Ordering::SeqCst)
                && !database.is_busy()
            {
                database.clear();
                return true;
            }
        }
        database.leaving.store(false, Ordering::SeqCst);
        false
    }
}

/// Returns whether any process is in a transaction in a database.
fn is_in_a_transaction(database: u32) -> bool {
    let (any, database) = (pg_sys::InvalidTransactionId, pg_sys::Oid::from(database));
    // SAFETY: reads PostgreSQL's list of transactions, under no lock of ours; an entry with an invalid id ends the
    // answer, which stays valid until the next call
    unsafe { (*pg_sys::GetConflictingVirtualXIDs(any, database)).localTransactionId != 0 }
}
