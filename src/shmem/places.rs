//! Places: how a database comes by its entry, and loses it.
//!
//! `eskit_lease.max_databases` databases may be in use at a time: as many entries are places. A call in a database
//! takes a place for it, and [`super::room`] says which database gives one up when all are taken.
//!
//! [`VISITS`] further entries are for databases that a worker only looks into, as after a start of the server: so this
//! keeps no place from a database in use. **An entry is visited** from when the launcher makes it until a call in that
//! database takes it over. That call takes one of the places for it, and the entry stays the same, with what the worker
//! has found. Only the worker has a reference to a visited entry, as a call asks for it first, and so takes it over,
//! under [`Lock::Alloc`]. So the launcher may give it up, under the same lock, as soon as no worker is there and
//! nothing of the database is in shared memory, whatever transactions are open in it. A database that turns out to be
//! in use, by sessions of before, gets one of the places when its entry is wanted for another visit; as long as more
//! than `max_databases` are in use it keeps that of its visit.

use super::databases::{BOOT, Database, RESCAN};
use super::latch::set_latch;
use super::shared::{Lock, Shared};
use crate::base::error::{Error, Result};
use crate::pg::catalog::Home;
use crate::pg::clock;
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Databases that may be visited at a time.
pub const VISITS: usize = 8;

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    /// The database whose worker this process is.
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

impl Shared {
    /// Returns how many databases may be in use.
    pub fn places(&self) -> usize {
        self.databases.len() - VISITS
    }

    /// Returns how many databases have a place.
    fn taken(&self) -> usize {
        let taken = |known: &&Database| known.oid.load(Ordering::Relaxed) != 0 && !known.visited.load(Ordering::SeqCst);
        self.databases.iter().filter(taken).count()
    }

    /// Returns whether no place is free.
    pub fn is_full(&self) -> bool {
        self.taken() >= self.places()
    }

    /// The entry of a database, made if there is none.
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
        // To look into a new one.
        self.wake_launcher();
        let index = index.ok_or(Error::DatabasesFull)?;
        let database = &self.databases[index];
        if database.table.swap(home.table, Ordering::AcqRel) != home.table {
            database.raised.store(0, Ordering::Release);
            database.refence.store(0, Ordering::Release);
            database.first_claim.store(0, Ordering::Release);
            database.positions_of.store(0, Ordering::Release);
            // For sessions of a former table, which no call asks for any more.
            database.flag(RESCAN);
            self.wake(database);
        }
        MINE.set(Some(index));
        Ok(database)
    }

    /// Returns the index of a database's entry, for a call in it: one that has a place. `None` when all places are
    /// taken.
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

    /// The same for a worker of the database, by its latch: the entry is not given up while it is there.
    pub fn register_for(&self, oid: u32, worker: *mut pg_sys::Latch) -> Option<usize> {
        SERVED.set(oid);
        self.register_visit(oid, worker)
    }

    /// Returns the index of a database's entry, for a visit by this worker, or by one to come. Where the database has
    /// none it gets one beside the places, if one of these is free.
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

    /// Gives a free entry to a database, under Lock::Alloc.
    fn occupy(&self, oid: u32) -> Option<usize> {
        let index = self.index_of(0)?;
        // What it holds from before is not known: a copy of another database has that one's rows.
        self.databases[index].flag(BOOT);
        self.databases[index].since.store(clock::wall(), Ordering::Relaxed);
        self.databases[index].oid.store(oid, Ordering::Release);
        Some(index)
    }

    pub fn known_database(&self, oid: u32) -> Option<&'static Database> {
        self.databases.iter().find(|known| known.oid.load(Ordering::Acquire) == oid)
    }

    /// Ends a visit: the database gives its entry up, or has a place from now on if it is in use. `failed`: also where
    /// it is still to be looked into. Returns whether it gave its entry up.
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
            // By no more than may be: then it keeps what it has.
            database.visited.store(self.is_full(), Ordering::SeqCst);
            return false;
        }
        if database.is_busy() && !failed {
            return false;
        }
        database.clear();
        true
    }

    /// Gives back the entries of databases that are no more, without waiting for their sessions' deadlines. `dropped`
    /// says which they are, of those that have one: in this order, a database that is just being made is not taken for
    /// one that is no more.
    pub fn forget_dropped(&self, dropped: impl FnOnce(Vec<u32>) -> Vec<u32>) {
        let known = self.databases.iter().map(|known| known.oid.load(Ordering::Acquire));
        for oid in dropped(known.filter(|oid| *oid != 0).collect()) {
            self.forget(oid, || true);
        }
    }

    /// Forgets a database that is no more, or has no extension of ours, and with it its sessions. One that is just
    /// being opened, after an extension that is not committed either, is left alone, and so is the entry. `is_gone`
    /// says whether it is so; asked once it is known which sessions are being opened, because a transaction that has
    /// finished that has committed the extension too.
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
        // By now another process may have forgotten it, and given its entry to another database.
        let Some(database) = self.known_database(oid) else {
            return;
        };
        database.take_flags(u64::MAX);
        if left {
            return;
        }
        database.clear();
    }

    /// Wakes the process that serves the database: its worker, or the launcher, which starts one.
    pub fn wake(&self, database: &Database) {
        if database.worker.load(Ordering::Acquire).is_null() {
            self.wake_launcher();
        } else {
            set_latch(&database.worker);
        }
    }
}

impl Database {
    /// Returns whether this process is its worker.
    fn is_mine(&self) -> bool {
        self.oid.load(Ordering::Acquire) == SERVED.get()
    }

    /// Returns whether it has its entry for a visit only.
    pub fn is_visited(&self) -> bool {
        self.oid.load(Ordering::Acquire) != 0 && self.visited.load(Ordering::SeqCst)
    }
}

/// Returns whether there is such a database.
fn exists(oid: u32) -> bool {
    // SAFETY: in a transaction, under no lock of ours; reads the catalog through its cache, after what others have
    // committed has been heard of
    unsafe {
        pg_sys::AcceptInvalidationMessages();
        pg_sys::SearchSysCacheExists(
            pg_sys::SysCacheIdentifier::DATABASEOID as i32,
            pg_sys::Datum::from(oid),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        )
    }
}
