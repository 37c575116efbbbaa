//! Room for databases: who gives its entry up when all are taken.
//!
//! After a start each database that has the extension is looked into once, and there may be more of them than entries. An entry is for a database in
//! use: one that has living or dead sessions, a resource to be judged, a prepared transaction whose end is watched for, a waiting call or a
//! worker, or that is still to be looked through. Another one gives its entry up for a database that needs one, and loses by it what can be found
//! again: its counters begin anew, what is kept of fences and positions is read again, and rows that are kept for a while are looked for
//! by the launcher, which remembers when the first of them is due.
//!
//! **Whoever is in a call** has a reference to the entry, and is in a transaction. So the entry is first marked as leaving, and given up only if nobody
//! is in a transaction in that database then. A call that begins later finds the mark and takes it away, under the lock under which the entry is
//! given up. (It is in a transaction before it reads the mark: the snapshot that each call has is taken under a lock of PostgreSQL's in between.
//! What a commit notes when its transaction is over is about sessions, which keep the entry, or is found by the next look into the database.)

use super::databases::Database;
use super::word::State;
use super::{Lock, Shared, clock};
use pgrx::pg_sys;
use std::collections::HashSet;
use std::sync::atomic::{Ordering, fence};

impl Shared {
    /// The databases that have sessions, resources to be judged, or prepared transactions.
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
        let oid = database.oid.load(Ordering::Acquire);
        with_rows.contains(&oid) || database.is_busy() || self.watches_prepared(database)
    }

    /// How many databases are in use.
    pub fn databases_in_use(&self) -> usize {
        let with_rows = self.with_rows();
        let taken = self.databases.iter().filter(|database| database.oid.load(Ordering::Acquire) != 0);
        taken.filter(|database| self.is_in_use(database, &with_rows)).count()
    }

    /// Has a database give up its entry that is not in use. Whether one has.
    pub fn make_room(&self) -> bool {
        let with_rows = self.with_rows();
        let places = self.databases.len();
        // In turns, so that none is always the one.
        let first = self.header.room_hand.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn = (0..places).map(|step| &self.databases[(first + step) % places]);
        in_turn.filter(|database| !self.is_in_use(database, &with_rows)).any(|database| self.give_up(database))
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

/// Whether any process is in a transaction in a database.
fn is_in_a_transaction(database: u32) -> bool {
    let (any, database) = (pg_sys::InvalidTransactionId, pg_sys::Oid::from(database));
    // SAFETY: reads PostgreSQL's list of transactions, under no lock of ours; the answer ends in one without a number, and lives to the next call
    unsafe { (*pg_sys::GetConflictingVirtualXIDs(any, database)).localTransactionId != 0 }
}
