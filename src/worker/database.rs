//! A database worker: does runs over one database until there is nothing to do, or other databases need its turn.

use super::{
    Due, each_post_due, each_session_due, handle_signals, report_activity, report_idle, sleep, without_timeouts,
};
use crate::base::error::Result;
use crate::base::{limits, settings};
use crate::bridge::tend;
use crate::call::Call;
use crate::ending::notify;
use crate::ending::retention::{self, Progress};
use crate::ending::sweep::waited::Looked;
use crate::ending::sweep::{self, Pass};
use crate::pg::{catalog, clock, savepoint};
use crate::seam;
use crate::shmem::databases::Database;
use crate::shmem::{Shared, my_latch, shared};
use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;

#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn eskit_lease_database_main(argument: pg_sys::Datum) {
    let oid = pg_sys::Oid::from(argument.value() as u32);
    handle_signals();
    // SAFETY: at the start of a background worker; exits if the database is gone. It connects even to a database that
    // refuses connections, which may still have earlier sessions.
    unsafe {
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::Oid::INVALID, flags);
    }
    without_timeouts();
    let Ok(shared) = shared() else { return };
    // A database may be forgotten while a session in it is being opened. For the sweep of that session, this makes an
    // entry.
    let Some(index) = shared.register_for(oid.to_u32(), my_latch()) else { return };
    let database = &shared.databases[index];
    seam::i_am_a_worker();
    catalog::be_patient();
    tend::begin();
    serve(shared, database);
    shared.wake_launcher();
}

/// Returns when the first session of this database becomes due, if that is while this worker stays.
fn sessions_due(shared: &Shared, oid: u32, now: u64) -> u64 {
    let mut due = Due::default();
    each_session_due(shared, now, |whose, at| {
        if whose == oid {
            due.at(at);
        }
    });
    due.earliest().unwrap_or(u64::MAX)
}

/// Leaves the database's entry. From then on the entry may be another database's.
fn leave(database: &Database, finished: bool) {
    database.finished.store(finished, Ordering::Release);
    database.tending.store(false, Ordering::Release);
    database.worker.store(std::ptr::null_mut(), Ordering::Release);
}

/// What a worker remembers between runs. An error ends the process, so nothing is remembered of a run that failed.
struct Known {
    looked: Looked,
    retired: Progress,
}

/// Does runs until there is nothing to do, the rest must be retried later, other databases need the turn, or the worker
/// is switched off.
fn serve(shared: &'static Shared, database: &'static Database) {
    let oid = database.oid.load(Ordering::Acquire);
    let began = clock::now();
    let (mut stay_until, mut gather_until) = (began + limits::WORKER_LINGER, 0);
    let mut known = Known { looked: Looked::default(), retired: Progress::of_worker() };
    database.worker.store(my_latch(), Ordering::Release);
    while settings::WORKER.get() {
        let now = clock::now();
        let (of_sessions, of_posts) = (sessions_due(shared, oid, now), posts_due(shared, oid, now));
        let due = of_sessions.min(of_posts);
        // The locks of bridges end with the worker that has them.
        let tending = tend::is_tending();
        if database.tending.swap(tending, Ordering::AcqRel) != tending {
            // A worker that tends bridges does not count, so the number of workers that may run has changed.
            shared.wake_launcher();
        }
        let crowded = !tending && (shared.header.crowded.load(Ordering::Acquire) || shared.is_room_wanted(now));
        if crowded
            && (now > began + limits::WORKER_LINGER
                || due > now + limits::WORKER_AHEAD && now > began + limits::WORKER_TURN)
        {
            // Other databases wait for a worker, and this one has had its turn. The rest of its work comes after
            // theirs.
            break;
        } else if of_sessions <= now || of_posts <= now && gather_until <= now {
            if !pass_over(shared, database, of_sessions <= now, &mut known) {
                // The database may have been forgotten, and its entry may be another database's.
                if shared.known_database(oid).is_some_and(|entry| std::ptr::eq(entry, database)) {
                    leave(database, false);
                }
                return;
            }
            let now = clock::now();
            (stay_until, gather_until) = (now + limits::WORKER_LINGER, now + limits::WORKER_GATHER);
            // Handles interrupts and a reload of the settings, even if one run follows another.
            sleep(0);
        } else if of_posts <= now {
            // Pauses even if the latch is set.
            clock::pause(gather_until - now);
        } else if due <= now + limits::WORKER_SOON {
            sleep(due - now);
        } else if crowded {
            sleep(began + limits::WORKER_TURN - now.min(began + limits::WORKER_TURN));
        } else if tending {
            sleep(due.min(now + limits::WORKER_LINGER) - now);
            if due > now + limits::WORKER_LINGER {
                tend::remind(shared, database);
            }
        } else if now < stay_until && database.blocked.until() == 0 {
            sleep(stay_until.min(due) - now);
        } else if !look_once_more(shared, database, oid) {
            return;
        }
    }
    leave(database, true);
}

/// Leaves, unless something is due soon. Returns whether this worker stays.
fn look_once_more(shared: &Shared, database: &Database, oid: u32) -> bool {
    // A post from now on wakes the launcher. This last look sees all earlier posts.
    leave(database, true);
    let now = clock::now();
    if sessions_due(shared, oid, now).min(posts_due(shared, oid, now)) > now + limits::WORKER_SOON {
        return false;
    }
    // If the entry was given up meanwhile, the launcher starts another worker.
    let index = shared.register_for(oid, my_latch());
    let stays = index.is_some_and(|index| std::ptr::eq(&shared.databases[index], database));
    if stays {
        database.finished.store(false, Ordering::Release);
    }
    stays
}

fn posts_due(shared: &Shared, oid: u32, now: u64) -> u64 {
    let mut due = Due::default();
    each_post_due(shared, now, |whose, at| {
        if whose == oid {
            due.at(at);
        }
    });
    due.earliest().unwrap_or(u64::MAX)
}

/// Does one run, tells listeners what it has changed, and does retention if it is time. Returns false if the extension
/// is not in this database.
fn pass_over(shared: &'static Shared, database: &Database, anybody_due: bool, known: &mut Known) -> bool {
    let now = clock::now();
    report_activity(c"eskit_lease: hand-over and sweep");
    let Some(pass) = transaction(|| work(shared, database, anybody_due, &mut known.looked)) else {
        return false;
    };
    tell(shared, database, &pass);
    // Retention comes last, so no hand-over waits for it.
    if retention::is_time(database, now, pass.looked_through) {
        transaction(|| retire(shared, now, pass.looked_through, &mut known.retired));
        known.retired.is_committed(database);
    }
    report_idle();
    true
}

/// Does one run, and returns what it has done; `None` if the extension is not in this database, so that there is
/// nothing to do.
fn work(shared: &'static Shared, database: &Database, anybody_due: bool, looked: &mut Looked) -> Result<Option<Pass>> {
    if catalog::home_if_any().is_none() {
        shared.forget(database.oid.load(Ordering::Acquire), || catalog::extension().is_none());
        return Ok(None);
    }
    Ok(Some(sweep::pass(&Call::open(shared)?, limits::MAX_PASS, anybody_due, looked)?))
}

fn retire(shared: &'static Shared, now: u64, at_once: bool, progress: &mut Progress) -> Result<()> {
    if catalog::home_if_any().is_some() {
        retention::retire(&Call::open(shared)?, now, limits::MAX_PASS, at_once, progress);
    }
    Ok(())
}

/// Tells listeners, in a transaction of its own. If the queue of notifications is full, they cannot be told. That must
/// not undo the run.
fn tell(shared: &'static Shared, database: &Database, pass: &Pass) {
    if !notify::has_news(database, pass) {
        return;
    }
    let send = || {
        without_waiting_for_the_disk();
        Call::open(shared).map(|call| notify::send(&call, pass))
    };
    PgTryBuilder::new(AssertUnwindSafe(|| transaction(send)))
        .catch_others(|error| {
            let message = savepoint::message(&error);
            // SAFETY: the error has been caught, and its transaction must still be cleaned up
            unsafe { pg_sys::AbortCurrentTransaction() };
            pgrx::log!("eskit_lease: listeners could not be notified, who find out with their next call: {message}");
            // Until the queue has room, a retry would only fill the log.
            sleep(limits::WORKER_LINGER / 10);
        })
        .execute();
}

/// Lets this transaction commit without waiting for the disk: a crash may lose it.
fn without_waiting_for_the_disk() {
    let (context, source) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_SESSION);
    let (local, no_level) = (pg_sys::GucAction::GUC_ACTION_LOCAL, 0);
    // SAFETY: in a transaction, whose end restores the setting
    unsafe {
        let (name, off) = (c"synchronous_commit".as_ptr(), c"off".as_ptr());
        pg_sys::set_config_option(name, off, context, source, local, true, no_level, false);
    }
}

/// Runs work in a transaction of its own, so that no snapshot stays open between two pieces of work. An error in it
/// ends the process.
fn transaction<T>(work: impl FnOnce() -> Result<T>) -> T {
    // SAFETY: in a background worker, outside of a transaction
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        // Overrides the database's defaults, which are meant for its users.
        pg_sys::XactReadOnly = false;
        pg_sys::XactDeferrable = false;
        pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
        // DROP EXTENSION locks the extension first, and then the tables in an order of its own. So this also locks the
        // extension first: the two never deadlock.
        catalog::lock_extension();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = pg_sys::panic::ErrorReportable::unwrap_or_report(work());
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        // Otherwise autovacuum would learn of the dead rows only when this worker exits.
        pg_sys::pgstat_report_stat(false);
        result
    }
}
