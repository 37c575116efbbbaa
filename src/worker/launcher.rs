//! The launcher: sleeps until something is due in any database, and starts a worker there in time.

use super::confirmer::Keeper;
use super::visits::Visits;
use super::warn::{self, TtlLimits};
use super::witness::Witness;
use super::{Due, each_post_due, each_session_due, handle_signals, library, sleep, start, without_timeouts};
use crate::base::{limits, settings};
use crate::ending::log;
use crate::pg::{clock, transaction};
use crate::shmem::databases::{Database, PREPARED_ENDED, RESCAN, REVISE};
use crate::shmem::prepared::{ALL, HUNGRY};
use crate::shmem::{Shared, my_latch, set_latch, shared};
use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Registers the launcher. Call this while the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("eskit_lease launcher")
        .set_type("eskit_lease launcher")
        .set_library(&library())
        .set_function("eskit_lease_launcher_main")
        .enable_shmem_access(None)
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn eskit_lease_launcher_main(_argument: pg_sys::Datum) {
    handle_signals();
    // SAFETY: at the start of a background worker; with no database there are shared catalogs only
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0) };
    without_timeouts();
    let Ok(shared) = shared() else { return };
    shared.header.launcher.store(my_latch(), Ordering::Release);
    shared.launcher_begins();
    warn::of_the_clock();
    warn::of_the_slots();
    let mut launcher = Launcher {
        shared,
        visits: Visits::new(shared, databases().into_iter().filter_map(|(oid, open, _)| open.then_some(oid))),
        workers: HashMap::new(),
        served: HashMap::new(),
        reclaim_at: 0,
        watched_at: 0,
        room_looked_at: 0,
        warned_of_room: false,
        no_slot_at: 0,
        told: HashMap::new(),
    };
    let mut confirmer = Keeper::new();
    let mut witness = Witness::new();
    let mut limits_told = TtlLimits::default();
    loop {
        limits_told.tell();
        let now = clock::now();
        // Anything that becomes due during this turn wakes the launcher again.
        shared.header.launcher_wakes.store(u64::MAX, Ordering::Release);
        let wake_at = if settings::WORKER.get() {
            launcher.turn(now)
        } else {
            shared.header.unserved.store(0, Ordering::Relaxed);
            now + limits::LAUNCHER_TICK
        };
        let name = |oid| databases().into_iter().find(|(known, ..)| *known == oid).map(|(.., name)| name);
        let wake_at = wake_at.min(log::remaining(shared, now, name).unwrap_or(u64::MAX));
        let wake_at = wake_at.min(confirmer.turn(shared, now));
        shared.header.launcher_wakes.store(wake_at, Ordering::Release);
        let asleep = clock::now();
        sleep(wake_at.saturating_sub(asleep));
        if let Some(witness) = &mut witness {
            notice_pause(shared, witness, asleep, wake_at.max(asleep));
        }
    }
}

/// A database worker, as the launcher knows it.
struct Worker {
    /// Null if the worker could not be started, or has gone.
    handle: *mut pg_sys::BackgroundWorkerHandle,
    not_before: u64,
    backoff: u64,
}

/// What a database lacks to get a worker.
#[derive(PartialEq, Eq)]
enum Lack {
    /// The greatest number of workers is running.
    Turn,
    /// PostgreSQL has no free slot for a worker.
    Slot,
    /// The database is being dropped, renamed or copied. A worker would wait for that, and fail if the database
    /// is gone then.
    Lock,
}

struct Launcher {
    shared: &'static Shared,
    visits: Visits,
    workers: HashMap<u32, Worker>,
    /// When each database was last given a worker.
    served: HashMap<u32, u64>,
    /// When to look for tombstones.
    reclaim_at: u64,
    /// When prepared transactions were last looked at.
    watched_at: u64,
    /// When databases in use were last counted; and whether the launcher has warned that nearly all entries are in use.
    room_looked_at: u64,
    warned_of_room: bool,
    /// The turn in which PostgreSQL last had no slot for a worker.
    no_slot_at: u64,
    /// When the lack of a slot was last logged, for each database.
    told: HashMap<u32, u64>,
}

fn most_workers() -> usize {
    usize::try_from(settings::MAX_WORKERS.get()).unwrap_or(1)
}

impl Launcher {
    /// Does what is due. Returns when the next thing is due.
    fn turn(&mut self, now: u64) -> u64 {
        let mut next = Due::default();
        // This comes first, so that the turn of a worker that has gone is free for the next database.
        self.reap(now);
        next.at(self.visits.remember_kept(now));
        let visiting = self.visits.begin(self.running(), most_workers());
        self.warn_of_room(now);
        next.at(self.watch_prepared(now));
        if now >= self.reclaim_at {
            self.reclaim_at = self.shared.reclaim(now).min(now + limits::RECLAIM_EVERY);
        }
        let mut due: HashMap<u32, Due> = HashMap::new();
        let later = each_session_due(self.shared, now, |database, at| due.entry(database).or_default().at(at));
        let no_sessions = due.is_empty() && !later;
        each_post_due(self.shared, now, |database, at| due.entry(database).or_default().at(at));
        // What is due may be weeks away: the removal of kept rows.
        let nothing_soon = due.values().all(|due| due.earliest().is_none_or(|at| at > now + limits::LAUNCHER_IDLE));
        next.at(now
            + if no_sessions && nothing_soon && self.visits.are_over() {
                limits::LAUNCHER_IDLE
            } else {
                limits::LAUNCHER_TICK
            });
        self.forget_dropped();
        let mut due: Vec<(u64, u32)> =
            due.into_iter().filter_map(|(database, due)| Some((due.earliest()?, database))).collect();
        // The database that was last served longest ago comes first. An order by time would not be fair: posted
        // resources are always due at once.
        due.sort_unstable_by_key(|(at, database)| (self.served.get(database).copied().unwrap_or(0), *at, *database));
        let (mut crowded, mut unserved, mut waiting) = (visiting, BTreeSet::new(), 0);
        for (at, database) in due {
            let start_at = at
                .saturating_sub(limits::WORKER_AHEAD)
                .max(self.workers.get(&database).map_or(0, |known| known.not_before));
            if start_at > now {
                next.at(start_at);
            } else {
                let lack = self.start(database, now);
                crowded |= matches!(lack, Some(Lack::Turn | Lack::Slot));
                waiting += u32::from(lack.is_some() && at <= now);
                if matches!(lack, Some(Lack::Slot | Lack::Lock)) {
                    next.at(now + limits::LOOK_FOR_SLOT_EVERY);
                    if at > now {
                        next.at(at);
                    } else {
                        unserved.insert(database);
                    }
                }
            }
        }
        self.ask_for_help(&unserved, now);
        self.shared.header.unserved.store(waiting, Ordering::Relaxed);
        self.shared.header.crowded.store(crowded, Ordering::Release);
        if crowded {
            // A worker that lingers with nothing to do leaves.
            self.shared.databases.iter().for_each(|database| set_latch(&database.worker));
        }
        next.earliest().unwrap_or(now + limits::LAUNCHER_TICK)
    }

    /// Warns once when more than nine in ten of the regular entries for databases are in use.
    fn warn_of_room(&mut self, now: u64) {
        let taken = |database: &&Database| database.oid.load(Ordering::Acquire) != 0;
        let (entries, in_use) = (self.shared.entries(), self.shared.databases.iter().filter(taken).count());
        if in_use * 10 <= entries * 9 {
            self.warned_of_room = false;
        }
        if in_use * 10 <= entries * 9 || now < self.room_looked_at + limits::RECLAIM_EVERY {
            return;
        }
        self.room_looked_at = now;
        let (in_use, _) = self.shared.databases_in_use();
        let few_left = in_use * 10 > entries * 9;
        if few_left && !std::mem::replace(&mut self.warned_of_room, few_left) {
            pgrx::warning!(
                "eskit_lease: {in_use} of {entries} entries for databases (eskit_lease.max_databases) are in use; without one, calls in a database are refused"
            );
        }
        self.warned_of_room = few_left;
    }

    /// Asks a waiting call in each of these databases to do what is due there. Withdraws the request in any other
    /// database.
    fn ask_for_help(&self, unserved: &BTreeSet<u32>, now: u64) {
        for database in self.shared.databases {
            let oid = database.oid.load(Ordering::Acquire);
            if oid != 0 && unserved.contains(&oid) {
                database.unserved_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).ok();
                database.ask_for_help();
            } else if database.unserved_since.load(Ordering::Relaxed) != 0 {
                database.unserved_since.store(0, Ordering::Relaxed);
                database.asked.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Flags a rescan of databases in which prepared transactions have ended. Returns when to look again.
    fn watch_prepared(&mut self, now: u64) -> u64 {
        if now < self.watched_at + limits::LAUNCHER_TICK {
            return self.watched_at + limits::LAUNCHER_TICK;
        }
        self.watched_at = now;
        let shared = self.shared;
        let left = shared.each_ended_prepared(transaction::outcome, |database, whom| {
            // A commit changes what sessions hold; a rollback makes free what was claimed.
            let Some(known) = shared.known_database(database) else { return };
            known.flag(RESCAN | PREPARED_ENDED | if whom & ALL != 0 { REVISE } else { 0 });
            if whom & HUNGRY != 0 {
                shared.feed_all(known);
            }
        });
        now + if left { limits::LAUNCHER_TICK } else { limits::LAUNCHER_IDLE }
    }

    /// Returns how many workers count against the limit; one that stays for its locks does not.
    fn running(&self) -> usize {
        let stays = |oid: &u32| {
            self.shared.known_database(*oid).is_some_and(|database| database.tending.load(Ordering::Acquire))
        };
        self.workers.iter().filter(|(oid, worker)| !worker.handle.is_null() && !stays(oid)).count()
    }

    /// Notes which workers have gone.
    fn reap(&mut self, now: u64) {
        for (oid, worker) in &mut self.workers {
            let mut pid = 0;
            // SAFETY: the handle is that of a worker that this process has registered
            let gone = !worker.handle.is_null()
                && unsafe { pg_sys::GetBackgroundWorkerPid(worker.handle, &mut pid) }
                    == pg_sys::BgwHandleStatus::BGWH_STOPPED;
            if gone {
                // SAFETY: as above; it is not used again
                unsafe { pg_sys::pfree(worker.handle.cast()) };
                worker.handle = std::ptr::null_mut();
                let database = self.shared.known_database(*oid);
                if let Some(database) = database {
                    // A worker that was terminated could not do this itself.
                    database.worker.store(std::ptr::null_mut(), Ordering::Release);
                    database.tending.store(false, Ordering::Release);
                }
                // This worker ran well for long, so earlier failures no longer count.
                if self.served.get(oid).is_none_or(|at| now > *at + limits::LAST_START_WAIT) {
                    worker.backoff = 0;
                }
                if database.is_none_or(|database| database.finished.swap(false, Ordering::AcqRel)) {
                    (worker.not_before, worker.backoff) = (0, 0);
                } else {
                    worker.not_before = now + worker.backoff;
                    worker.backoff = (worker.backoff * 2).clamp(limits::FIRST_START_WAIT, limits::LAST_START_WAIT);
                    database.into_iter().for_each(|database| self.visits.failed(database, worker.not_before));
                }
            }
        }
        // A database that was served longer ago than this counts as one that was never served.
        self.served.retain(|_, at| now < *at + limits::LAUNCHER_IDLE);
        self.told.retain(|_, at| now < *at + limits::NO_SLOT_TOLD_EVERY);
        self.workers.retain(|_, worker| !worker.handle.is_null() || now < worker.not_before + limits::LAST_START_WAIT);
    }

    /// When all regular entries are taken, gives back the entries of dropped databases, without waiting for their
    /// sessions' deadlines.
    fn forget_dropped(&self) {
        if self.shared.is_full() {
            self.shared.forget_dropped(|mut known| {
                let there = databases();
                known.retain(|oid| !there.iter().any(|(there, ..)| there == oid));
                known
            });
        }
    }

    /// Starts a worker for a database that has none. Returns what the database lacks if it gets none.
    fn start(&mut self, oid: u32, now: u64) -> Option<Lack> {
        if self.workers.get(&oid).is_some_and(|worker| !worker.handle.is_null()) {
            return None;
        }
        if self.running() >= most_workers() {
            return Some(Lack::Turn);
        }
        let is_told = self.told.get(&oid).is_some_and(|at| now < at + limits::NO_SLOT_TOLD_EVERY);
        if self.no_slot_at == now && is_told {
            return Some(Lack::Slot);
        }
        // The search includes databases that refuse new connections: old connections, and their sessions, may still be
        // there.
        let Some((.., name)) = databases().into_iter().find(|(known, ..)| *known == oid) else {
            self.shared.forget(oid, || true);
            self.served.remove(&oid);
            self.visits.forget(oid);
            return None;
        };
        if !can_be_entered(oid) {
            return Some(Lack::Lock);
        }
        let first = Worker { handle: std::ptr::null_mut(), not_before: 0, backoff: 0 };
        let worker = self.workers.entry(oid).or_insert(first);
        let title = format!("eskit_lease worker for database {oid}");
        worker.handle = start(&title, "eskit_lease worker", "eskit_lease_database_main", oid);
        if !worker.handle.is_null() {
            self.served.insert(oid, now);
            return None;
        }
        self.no_slot_at = now;
        if !is_told {
            self.told.insert(oid, now);
            pgrx::log!(
                "eskit_lease: no free background worker slot for database \"{name}\": until there is one, its session_wait calls hand leases over, and where there are none leases go to whoever asks and dead rows stay; raise max_worker_processes, or lower max_parallel_workers"
            );
        }
        Some(Lack::Slot)
    }
}

/// Gives sessions back the time in which the whole server stood still, and no client could send a heartbeat. The
/// launcher has slept since `asleep`, and meant to wake at `wake_at`. Waking much later is the sign of a pause, and the
/// witness says whether the pause was the launcher's alone.
fn notice_pause(shared: &Shared, witness: &mut Witness, asleep: u64, wake_at: u64) {
    let now = clock::now();
    let Some((from, to)) = witness.pause(asleep, now) else { return };
    if now > wake_at + limits::LAUNCHER_LATE && to > from + limits::LAUNCHER_LATE {
        shared.postpone(from, to - from);
        pgrx::log!("eskit_lease: the machine was paused for {} ms; sessions got that much longer", (to - from) / 1_000);
    }
}

/// Returns whether a process could connect to a database now, without waiting for a command that keeps others out.
fn can_be_entered(oid: u32) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: 0,
        locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
        locktag_field3: oid,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: outside of a transaction; the lock that each new connection takes, which ends with this transaction
    unsafe {
        pg_sys::StartTransactionCommand();
        let answer = pg_sys::LockAcquire(&tag, pg_sys::RowExclusiveLock as i32, false, true);
        pg_sys::CommitTransactionCommand();
        answer != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Returns the databases of this server, each with whether it accepts connections, and its name.
fn databases() -> Vec<(u32, bool, String)> {
    let mut found = Vec::new();
    // SAFETY: outside of a transaction; a scan of a shared catalog, as the autovacuum launcher does it
    unsafe {
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            let name = std::ffi::CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned();
            found.push((row.oid.to_u32(), row.datallowconn, name));
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
    found
}
