//! Entries of databases: how a database gets its entry in shared memory, and how it loses the entry.
//!
//! At most `eskit_lease.max_databases` databases are in use at a time; each has a **regular entry**. The first call in
//! a database takes one for it. If all are taken, [`super::room`] says which database gives its entry up.
//!
//! [`VISITS`] further entries are for databases that a worker only looks into, as after a start of the server. So a
//! visit takes no entry from a database in use. The launcher makes the entry, and **the entry is visited** until a call
//! in that database takes it over. The entry is then a regular one, and keeps what the worker has found.
//!
//! Only the worker refers to a visited entry: a call first takes the entry over, under [`Lock::Alloc`]. So the launcher
//! may give it up under the same lock once no worker is there and shared memory holds nothing of the database. Open
//! transactions in the database do not matter. If the database turns out to be in use, by sessions of an earlier start,
//! its entry becomes a regular one when another visit wants an entry. If `max_databases` databases have regular
//! entries, its entry stays that of a visit.

use super::databases::{BOOT, Database, RESCAN};
use super::latch::set_latch;
use super::shared::{Lock, Shared};
use crate::base::error::{Error, Result};
use crate::pg::catalog::Home;
use crate::pg::clock;
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// How many databases may be visited at a time.
pub const VISITS: usize = 8;

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The database that this process is the worker of; zero in other processes.
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

impl Shared {
    /// Returns how many regular entries there are.
    pub fn entries(&self) -> usize {
        self.databases.len() - VISITS
    }

    /// Returns how many databases have a regular entry.
    pub fn taken(&self) -> usize {
        let taken = |known: &&Database| known.oid.load(Ordering::Relaxed) != 0 && !known.visited.load(Ordering::SeqCst);
        self.databases.iter().filter(taken).count()
    }

    /// Returns whether all regular entries are taken.
    pub fn is_full(&self) -> bool {
        self.taken() >= self.entries()
    }

    /// Returns the entry of this database, for a call. Makes one if there is none.
    pub fn database(&self, home: Home) -> Result<&'static Database> {
        let is_it = |database: &Database| {
            database.oid.load(Ordering::Acquire) == home.database
                && database.table.load(Ordering::Relaxed) == home.table
                && !database.leaving.load(Ordering::SeqCst)
                && (!database.visited.load(Ordering::SeqCst) || database.is_mine())
        };
        if let Some(mine) = MINE.get().map(|index| &self.databases[index]).filter(|mine| is_it(mine)) {
            return Ok(mine);
        }
        let known = self.register(home.database).or_else(|| {
            self.forget_dropped(|mut known| {
                known.retain(|oid| !exists(*oid));
                known
            });
            self.register(home.database)
        });
        let index = known.or_else(|| self.wait_for_room(home.database));
        // Wakes the launcher, which looks into a new database.
        self.wake_launcher();
        let index = index.ok_or(Error::DatabasesFull)?;
        let database = &self.databases[index];
        if database.table.swap(home.table, Ordering::AcqRel) != home.table {
            database.raised.store(0, Ordering::Release);
            database.refence.store(0, Ordering::Release);
            database.first_claim.store(0, Ordering::Release);
            database.positions_of.store(0, Ordering::Release);
            // The database may have sessions of a former table. No call asks for such sessions any more.
            database.flag(RESCAN);
            self.wake(database);
        }
        MINE.set(Some(index));
        Ok(database)
    }

    /// Returns the index of a database's regular entry, for a call in the database; the database's worker may use a
    /// visited entry. Makes an entry if there is none. Returns `None` when all regular entries are taken.
    pub(super) fn register(&self, oid: u32) -> Option<usize> {
        let _held = self.lock(Lock::Alloc, true);
        let index = match self.index_of(oid) {
            Some(known) if !self.databases[known].visited.load(Ordering::SeqCst) || self.databases[known].is_mine() => {
                known
            }
            _ if self.is_full() => return None,
            Some(visited) => visited,
            None => self.occupy(oid)?,
        };
        let database = &self.databases[index];
        if !database.is_mine() {
            database.visited.store(false, Ordering::SeqCst);
        }
        database.leaving.store(false, Ordering::SeqCst);
        Some(index)
    }

    /// Returns the index of the entry for a worker of the database, known by its latch. The entry is not given up while
    /// the worker is there.
    pub fn register_for(&self, oid: u32, worker: *mut pg_sys::Latch) -> Option<usize> {
        SERVED.set(oid);
        self.register_visit(oid, worker)
    }

    /// Returns the index of a database's entry, for a visit by this worker, or for a visit to come. A database without
    /// an entry gets one of the [`VISITS`], if one is free.
    pub fn register_visit(&self, oid: u32, worker: *mut pg_sys::Latch) -> Option<usize> {
        let _held = self.lock(Lock::Alloc, true);
        let index = self.index_of(oid).or_else(|| {
            let visits = self.databases.iter().filter(|known| known.is_visited()).count();
            let index = if visits < VISITS { self.occupy(oid) } else { None }?;
            self.databases[index].visited.store(true, Ordering::SeqCst);
            Some(index)
        })?;
        self.databases[index].leaving.store(false, Ordering::SeqCst);
        if !worker.is_null() {
            self.databases[index].worker.store(worker, Ordering::Release);
        }
        Some(index)
    }

    fn index_of(&self, oid: u32) -> Option<usize> {
        self.databases.iter().position(|known| known.oid.load(Ordering::Relaxed) == oid)
    }

    /// Gives a free entry to a database. The caller holds Lock::Alloc.
    fn occupy(&self, oid: u32) -> Option<usize> {
        let index = self.index_of(0)?;
        // What the database holds already is not known: a copy of another database has the rows of that database.
        self.databases[index].flag(BOOT);
        self.databases[index].since.store(clock::wall(), Ordering::Relaxed);
        self.databases[index].oid.store(oid, Ordering::Release);
        Some(index)
    }

    pub fn known_database(&self, oid: u32) -> Option<&'static Database> {
        self.databases.iter().find(|known| known.oid.load(Ordering::Acquire) == oid)
    }

    /// Ends a visit, if its worker has gone. The entry of a database in use becomes a regular one. Any other database
    /// gives its entry up, but only with `failed` if the database must still be looked into. Returns whether the entry
    /// was given up.
    pub fn end_visit(&self, database: &Database, failed: bool) -> bool {
        let oid = database.oid.load(Ordering::Acquire);
        let in_use = self.has_rows(database);
        if in_use && self.is_full() {
            self.make_room();
        }
        let _held = self.lock(Lock::Alloc, true);
        let is_it = database.is_visited() && database.oid.load(Ordering::Relaxed) == oid;
        if !is_it || !database.worker.load(Ordering::Acquire).is_null() {
            return false;
        }
        if in_use {
            // If no regular entry is free, the database keeps the entry of its visit.
            database.visited.store(self.is_full(), Ordering::SeqCst);
            return false;
        }
        if database.is_busy() && !failed {
            return false;
        }
        database.clear();
        true
    }

    /// Gives back the entries of dropped databases, without waiting for their sessions' deadlines. `dropped` picks the
    /// dropped ones from the databases that have an entry. The entries are read first: so a database that is just being
    /// created is not taken for a dropped one.
    pub fn forget_dropped(&self, dropped: impl FnOnce(Vec<u32>) -> Vec<u32>) {
        let known = self.databases.iter().map(|known| known.oid.load(Ordering::Acquire));
        for oid in dropped(known.filter(|oid| *oid != 0).collect()) {
            self.forget(oid, || true);
        }
    }

    /// Forgets a database that is dropped, or has lost our extension, and ends its sessions. A session may be in the
    /// middle of its opening, in the transaction that creates the extension. Then the session and the entry stay.
    ///
    /// `is_gone` says whether the database or its extension is gone. It is called after the sessions that are being
    /// opened are known: if such a transaction has finished by then, its extension is committed and visible.
    pub fn forget(&self, oid: u32, is_gone: impl FnOnce() -> bool) {
        let (mut sessions, mut left) = (Vec::new(), false);
        self.each(clock::now(), |at, home, _| {
            if home.database == oid {
                if self.being_opened(at) {
                    left = true;
                } else {
                    sessions.push(at);
                }
            }
        });
        if !is_gone() {
            return;
        }
        sessions.into_iter().for_each(|at| self.end(at, true));
        self.drop_dirty(oid);
        let _held = self.lock(Lock::Alloc, true);
        // Another process may have forgotten the database by now, and given its entry to another database.
        let Some(database) = self.known_database(oid) else {
            return;
        };
        database.take_flags(u64::MAX);
        if left {
            return;
        }
        database.clear();
    }

    /// Wakes the process that serves the database: its worker, or else the launcher, which starts one.
    pub fn wake(&self, database: &Database) {
        if database.worker.load(Ordering::Acquire).is_null() {
            self.wake_launcher();
        } else {
            set_latch(&database.worker);
        }
    }
}

impl Database {
    /// Returns whether this process is the database's worker.
    fn is_mine(&self) -> bool {
        self.oid.load(Ordering::Acquire) == SERVED.get()
    }

    /// Returns whether the database has its entry for a visit only.
    pub fn is_visited(&self) -> bool {
        self.oid.load(Ordering::Acquire) != 0 && self.visited.load(Ordering::SeqCst)
    }
}

/// Returns whether there is a database with this oid.
fn exists(oid: u32) -> bool {
    // SAFETY: in a transaction, under no lock of ours; reads the catalog through its cache, after it has accepted the
    // invalidations of other transactions
    unsafe {
        pg_sys::AcceptInvalidationMessages();
        pg_sys::SearchSysCacheExists(
            pg_sys::SysCacheIdentifier::DATABASEOID as _,
            pg_sys::Datum::from(oid),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        )
    }
}
