//! The worker: processes that do promptly what becomes due. A launcher watches shared memory for everything that
//! becomes due. A database worker then does the work, by the modules that verbs call.
//!
//! The launcher is connected to no database, so it blocks none. It sleeps until the earliest deadline, or until a latch
//! tells it of something new. A database worker lives only while its database has work. It is started a little before a
//! deadline, to be there when the deadline passes. It exits after a second with nothing to do, or when the rest must be
//! retried later.
//!
//! If more databases have work than there may be workers, they take turns. The database that was last served longest
//! ago is next. A worker leaves after a second, or after 50 ms if nothing is due then. DROP DATABASE, CREATE DATABASE
//! .. TEMPLATE and RENAME wait up to five seconds for other processes to leave the database, so a worker without work
//! does not make them fail. A worker that has the locks of bridges is the exception: it stays, and takes no part in the
//! turns (see [`crate::bridge::tend`] and [`interrupt`]).
//!
//! Parallel queries and others share PostgreSQL's slots for background workers. If there is none for a worker, the
//! launcher looks for one every 50 ms, and running workers leave as if they had to take turns. In a database that has
//! work and no worker a session_wait is woken, does the run itself, and answers. It can do so only where its answer
//! ends its transaction (see [`crate::ending::waiter_pass`]). Only databases without such a call wait for their turn.
//!
//! If standbys must confirm that this is the primary, the launcher also keeps a [`confirmer`].
//!
//! No answer depends on the launcher or on a worker. An ERROR or pg_terminate_backend ends the process. PostgreSQL
//! starts the launcher again after a second, and the launcher starts database workers while there is work.
//!
//! Files, low to high: interrupt, mod, warn, visits, witness, confirmer, database, launcher.

pub mod confirmer;
pub mod database;
mod interrupt;
pub mod launcher;
mod visits;
mod warn;
mod witness;

use crate::base::limits;
use crate::ending::retention;
use crate::shmem::word::State;
use crate::shmem::{Shared, my_latch};
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

/// When something becomes due for a database that has an entry, by the clock of shared memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due(Option<u64>);

impl Due {
    pub fn at(&mut self, at: u64) {
        self.0 = Some(self.0.map_or(at, |earliest| earliest.min(at)));
    }

    pub fn earliest(self) -> Option<u64> {
        self.0
    }
}

/// Visits each session that becomes due while a worker stays, with its database and the time. A session is due at its
/// deadline, for the sweep of its rows, or to be woken for work items. Sessions that are past their deadline become
/// dead. Returns whether other sessions may become due later.
pub fn each_session_due(shared: &Shared, now: u64, mut visit: impl FnMut(u32, u64)) -> bool {
    // The launcher looks again after `WORKER_LINGER` at the latest, and starts a worker a little before something is
    // due.
    let (by, mut beside) = (now + limits::WORKER_LINGER + 2 * limits::WORKER_AHEAD, false);
    let later = shared.each_due(by, now, |_, home, word, due| {
        let due = match word.state() {
            State::Alive | State::Frozen => due,
            State::Dead => shared.known_database(home.database).map_or(0, |database| database.blocked.until()).max(now),
            State::Free | State::Gone => return,
        };
        if due <= by {
            visit(home.database, due);
        } else {
            beside = true;
        }
    });
    later || beside
}

/// Visits everything else that becomes due: resources in the ring, and in each database a rescan, the waking of
/// sessions for items, and retention.
pub fn each_post_due(shared: &Shared, now: u64, mut visit: impl FnMut(u32, u64)) {
    shared.each_dirty(&mut visit);
    for database in shared.databases {
        let oid = database.oid.load(Ordering::Acquire);
        for due in [database.flags_due(), database.patience(), retention::due(database)]
            .into_iter()
            .flatten()
            .filter(|_| oid != 0)
        {
            visit(oid, due.max(now));
        }
    }
}

/// Sleeps until the latch is set, or for `span` microseconds, a minute at most. Then handles interrupts and a reload of
/// the settings.
pub fn sleep(span: u64) {
    let timeout = std::ffi::c_long::try_from(span.div_ceil(1_000)).unwrap_or(1_000).min(60_000);
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: in a background worker, outside of any lock
    unsafe {
        pg_sys::WaitLatch(my_latch(), events as i32, timeout, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(my_latch());
        interrupt::stay_for_clients();
        pgrx::check_for_interrupts!();
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Returns the library that background workers must load: this one, by the file from which it was loaded. PostgreSQL
/// would search for its short name, and might find another file by now (see [`crate::pg::version`]).
fn library() -> String {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: asks about a function of this library; the answer's name, if there is one, ends in NUL and lives as long
    // as the library
    let name = unsafe {
        let known = libc::dladdr(handle_signals as *const std::ffi::c_void, found.as_mut_ptr());
        (known != 0).then(|| std::ffi::CStr::from_ptr(found.assume_init().dli_fname).to_str().ok()).flatten()
    };
    // Before 16 PostgreSQL has no room for a longer name.
    name.filter(|name| name.len() < pg_sys::BGW_MAXLEN as usize).unwrap_or("eskit_lease").to_owned()
}

/// Installs the signal handlers of a backend: so pg_terminate_backend works anywhere, and settings reload.
fn handle_signals() {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    use pg_sys::pqsignal;
    #[cfg(any(feature = "pg18", feature = "pg19"))]
    use pg_sys::pqsignal_be as pqsignal;
    // These are PostgreSQL's own handlers. pgrx wraps them in a way that a signal cannot call.
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
    unsafe extern "C-unwind" {
        fn die(signal: std::ffi::c_int);
        fn SignalHandlerForConfigReload(signal: std::ffi::c_int);
    }
    #[cfg(feature = "pg19")]
    unsafe extern "C-unwind" {
        fn die(signal: std::ffi::c_int, sender: *const pg_sys::pg_signal_info);
        fn SignalHandlerForConfigReload(signal: std::ffi::c_int, sender: *const pg_sys::pg_signal_info);
    }
    // SAFETY: at the start of a background worker, before signals are let in
    unsafe {
        pqsignal(libc::SIGHUP, Some(SignalHandlerForConfigReload));
        pqsignal(libc::SIGTERM, Some(die));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Switches off the timeouts of the configuration and the database, which are meant for their users, as autovacuum
/// does. A worker that gave up waiting for a lock would begin again, ever later.
fn without_timeouts() {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let timeouts = [c"lock_timeout"];
    #[cfg(any(feature = "pg17", feature = "pg18", feature = "pg19"))]
    let timeouts = [c"lock_timeout", c"transaction_timeout"];
    for timeout in timeouts {
        let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
        // SAFETY: at the start of a background worker that knows its settings
        unsafe { pg_sys::SetConfigOption(timeout.as_ptr(), c"0".as_ptr(), context, source) };
    }
}

/// Asks the postmaster to start a process of a type, at the given function. Returns null if there is no free slot for
/// it.
fn start(name: &str, kind: &str, function: &str, argument: u32) -> *mut pg_sys::BackgroundWorkerHandle {
    fn fill(into: &mut [std::ffi::c_char], text: &str) {
        for (to, from) in into.iter_mut().zip(text.bytes()) {
            *to = from.cast_signed();
        }
    }
    let access = pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION;
    let mut worker = pg_sys::BackgroundWorker {
        bgw_flags: (access | interrupt::INTERRUPTIBLE) as i32,
        bgw_start_time: pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished,
        bgw_restart_time: pg_sys::BGW_NEVER_RESTART,
        bgw_main_arg: pg_sys::Datum::from(argument),
        // SAFETY: a plain read; PostgreSQL tells the launcher of the process's start and end
        bgw_notify_pid: unsafe { pg_sys::MyProcPid },
        ..Default::default()
    };
    fill(&mut worker.bgw_name, name);
    fill(&mut worker.bgw_type, kind);
    fill(&mut worker.bgw_library_name, &library());
    fill(&mut worker.bgw_function_name, function);
    let mut handle = std::ptr::null_mut();
    // SAFETY: the structure is complete, and copied; the handle is allocated in the context that lives as long as this
    // process
    unsafe {
        let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
        pg_sys::MemoryContextSwitchTo(context);
        if started { handle } else { std::ptr::null_mut() }
    }
}

fn report_activity(text: &std::ffi::CStr) {
    // SAFETY: the text is copied
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, text.as_ptr()) };
}

fn report_idle() {
    // SAFETY: no text
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()) };
}
