//! Visits: the databases into which the launcher must still send a worker.
//!
//! After a start of the server every database is visited once: shared memory does not know what rows it has. Later a
//! database may give up its entry (see [`crate::shmem::entries`]) while it keeps rows for a while. It is visited when
//! the first of these rows must be removed.
//!
//! A visit needs an entry and a worker. As many visits begin at a time as there may be workers. Each turn of the
//! launcher begins one more, so databases in which workers fail do not hold up the others. While databases wait for a
//! visit, workers leave as if others had to take turns.

use crate::ending::retention;
use crate::shmem::Shared;
use crate::shmem::databases::{BOOT, Database};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

pub struct Visits {
    shared: &'static Shared,
    /// Databases to look into as soon as there is room.
    unvisited: BTreeSet<u32>,
    /// When to remove rows that a database keeps for a while. This includes databases that have given up their entries.
    kept_until: HashMap<u32, u64>,
}

impl Visits {
    pub fn new(shared: &'static Shared, unvisited: impl Iterator<Item = u32>) -> Self {
        Self { shared, unvisited: unvisited.collect(), kept_until: HashMap::new() }
    }

    /// Returns whether no database waits for its visit.
    pub fn are_over(&self) -> bool {
        self.unvisited.is_empty()
    }

    /// Forgets a database that is dropped.
    pub fn forget(&mut self, oid: u32) {
        self.unvisited.remove(&oid);
        self.kept_until.remove(&oid);
    }

    /// Remembers when to remove rows that databases keep for a while. A database that has given up its entry is visited
    /// at that time. Returns the time of the next such visit.
    pub fn remember_kept(&mut self, now: u64) -> u64 {
        self.shared.databases.iter().for_each(|database| self.remember(database));
        let mut next = u64::MAX;
        let known: BTreeSet<u32> =
            self.shared.databases.iter().map(|known| known.oid.load(Ordering::Acquire)).collect();
        for (oid, due) in self.kept_until.iter().filter(|(oid, _)| !known.contains(oid)) {
            if *due <= now {
                self.unvisited.insert(*oid);
            } else {
                next = next.min(*due);
            }
        }
        next
    }

    fn remember(&mut self, database: &Database) {
        let oid = database.oid.load(Ordering::Acquire);
        if oid != 0 {
            match retention::due(database) {
                Some(due) => self.kept_until.insert(oid, due),
                None => self.kept_until.remove(&oid),
            };
        }
    }

    /// Notes that the visit to a database has failed. Other databases may use its entry until the next try, at `again`.
    pub fn failed(&mut self, database: &Database, again: u64) {
        let oid = database.oid.load(Ordering::Acquire);
        if self.shared.end_visit(database, true) {
            self.kept_until.insert(oid, again);
        }
    }

    /// Ends visits that have found nothing to stay for, so that other databases get the entries.
    fn end_visits(&mut self) {
        for database in self.shared.databases.iter().filter(|known| known.is_visited()) {
            // Once its worker has gone, the time of its kept rows is final.
            if database.worker.load(Ordering::Acquire).is_null() {
                self.remember(database);
                self.shared.end_visit(database, false);
            }
        }
    }

    /// Begins visits, while `running` of at most `most` workers are there. Returns whether databases wait for these
    /// visits to end. A database that waits for an entry does not count: the entries may be in use for long.
    pub fn begin(&mut self, running: usize, most: usize) -> bool {
        if running >= most {
            return !self.are_over();
        }
        while let Some(oid) = self.unvisited.pop_first() {
            let begin = || self.shared.register_visit(oid, std::ptr::null_mut());
            let index = begin().or_else(|| {
                self.end_visits();
                begin()
            });
            let Some(index) = index else {
                self.unvisited.insert(oid);
                return self.shared.databases.iter().any(|known| known.is_visited() && known.is_busy());
            };
            self.shared.databases[index].flag(BOOT);
            if self.shared.databases.iter().filter(|known| known.flags() & BOOT != 0).count() >= most {
                break;
            }
        }
        !self.are_over()
    }
}
