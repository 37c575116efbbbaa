//! The confirmer: a process of its own, since it waits for standbys for as long as they are away.
//! [`crate::shmem::confirm`] says what its confirmations mean.
//!
//! Once per interval the confirmer writes one record of WAL that changes nothing, flushes it, and checks until the
//! synchronous standbys have acknowledged it. The next confirmation is due an interval after the start of this one. The
//! confirmer is connected to no database, so it blocks none. It takes no transaction id and marks the record as
//! unimportant: an idle server makes no checkpoint for it, and archives no WAL.
//!
//! The confirmer does not wait as a commit does, in PostgreSQL's queue of processes that wait for standbys. A process
//! in that queue does not answer requests to all processes, so CREATE and DROP DATABASE would also wait for the
//! standbys. Also, a cancel would end the wait, and the process would not see changed settings.
//!
//! The launcher starts the confirmer while the setting is not zero and there are standbys to ask. It ends the confirmer
//! when one of the two changes, and when the launcher itself exits. Without standbys to ask, the launcher itself
//! confirms. If two confirmers ever run at the same time, the confirmations of both are true.

use super::{handle_signals, report_activity, report_idle, sleep, start};
use crate::base::{limits, settings};
use crate::pg::clock;
use crate::shmem::{Shared, confirm, shared};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;

/// Returns the interval in microseconds; zero while confirmations are off.
fn interval() -> u64 {
    u64::from(settings::CONFIRM_INTERVAL.get().cast_unsigned()) * 1_000
}

#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn eskit_lease_confirmer_main(_argument: pg_sys::Datum) {
    // SAFETY: at the start of a background worker. It has no query to be cancelled.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    handle_signals();
    // SAFETY: as above; without a database, so that pg_stat_activity shows it
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0) };
    let Ok(shared) = shared() else { return };
    // The launcher also ends this process, but may be held up. Without an interval it would write one record after
    // another.
    while confirm::is_on() {
        let began = clock::now();
        report_activity(c"eskit_lease: confirmation");
        let (lsn, mut pause) = (write(), limits::FIRST_CONFIRM_PAUSE);
        while !confirm::is_acknowledged(lsn) {
            sleep(pause);
            pause = (pause * 2).min(limits::LAST_CONFIRM_PAUSE);
        }
        shared.confirm(began);
        report_idle();
        loop {
            let left = (began + interval()).saturating_sub(clock::now());
            sleep(left);
            if left == 0 {
                break;
            }
        }
    }
}

/// Makes a record and flushes it, so that it is sent to the standbys. Returns where the record ends.
fn write() -> u64 {
    let content = c"eskit_lease";
    // SAFETY: outside of any lock; a record that says and changes nothing
    unsafe {
        pg_sys::XLogBeginInsert();
        pg_sys::XLogSetRecordFlags(pg_sys::XLOG_MARK_UNIMPORTANT as u8);
        pg_sys::XLogRegisterData(content.as_ptr().cast_mut().cast(), content.count_bytes() as _);
        let lsn = pg_sys::XLogInsert(pg_sys::RmgrIds::RM_XLOG_ID as u8, pg_sys::XLOG_NOOP as u8);
        pg_sys::XLogFlush(lsn);
        lsn
    }
}

thread_local! {
    /// The confirmer that this process, the launcher, has started; null without one.
    static HANDLE: Cell<*mut pg_sys::BackgroundWorkerHandle> = const { Cell::new(std::ptr::null_mut()) };
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: c_int, _argument: pg_sys::Datum) {
    end();
}

/// Asks the postmaster to end the confirmer, if there is one.
fn end() {
    let handle = HANDLE.get();
    if !handle.is_null() {
        // SAFETY: the handle is that of a worker that this process has registered
        unsafe { pg_sys::TerminateBackgroundWorker(handle) };
    }
}

/// The confirmer as the launcher knows it.
pub struct Keeper {
    not_before: u64,
    /// Since when confirmations are made; zero while they are not.
    since: u64,
    /// What the launcher has logged: that no confirmations come, and that the confirmer finds no slot.
    silent: bool,
    short_of_slots: bool,
}

impl Keeper {
    pub fn new() -> Keeper {
        // SAFETY: in the launcher, once
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
        Keeper { not_before: 0, since: 0, silent: false, short_of_slots: false }
    }

    /// Starts or ends the confirmer as the settings ask. Returns when to look again.
    pub fn turn(&mut self, shared: &Shared, now: u64) -> u64 {
        self.reap(now);
        shared.set_confirming();
        if !confirm::is_on() {
            end();
            (self.since, self.not_before, self.silent) = (0, 0, false);
            return if HANDLE.get().is_null() { u64::MAX } else { now + limits::LOOK_AT_CONFIRMER_EVERY };
        }
        if self.since == 0 {
            self.since = now;
        }
        if !confirm::has_synchronous_standbys() {
            end();
            shared.confirm(now);
            self.tell(shared, now);
            return now + interval().min(limits::LOOK_AT_CONFIRMER_EVERY);
        }
        if HANDLE.get().is_null() && self.not_before <= now {
            self.start(now);
        }
        self.tell(shared, now)
    }

    fn reap(&mut self, now: u64) {
        let (handle, mut pid) = (HANDLE.get(), 0);
        // SAFETY: the handle is that of a worker that this process has registered; it is freed once
        unsafe {
            if !handle.is_null()
                && pg_sys::GetBackgroundWorkerPid(handle, &mut pid) == pg_sys::BgwHandleStatus::BGWH_STOPPED
            {
                pg_sys::pfree(handle.cast());
                HANDLE.set(std::ptr::null_mut());
                self.not_before = now + limits::LOOK_AT_CONFIRMER_EVERY;
            }
        }
    }

    fn start(&mut self, now: u64) {
        HANDLE.set(start("eskit_lease confirmer", "eskit_lease confirmer", "eskit_lease_confirmer_main", 0));
        let failed = HANDLE.get().is_null();
        if failed {
            self.not_before = now + limits::LOOK_AT_CONFIRMER_EVERY;
        }
        if failed && !self.short_of_slots {
            pgrx::log!(
                "eskit_lease: no free background worker slot for the confirmer: until there is one, sessions are told to trust themselves for a TTL from the last confirmation; raise max_worker_processes"
            );
        }
        self.short_of_slots = failed;
    }

    /// Logs when no confirmation has come for the shortest TTL, or for two intervals if that is longer; and when
    /// confirmations come again. Returns when to look again.
    fn tell(&mut self, shared: &Shared, now: u64) -> u64 {
        let last = shared.confirmed().unwrap_or(0).max(self.since);
        let limit = u64::from(settings::MIN_TTL.get().cast_unsigned()) * 1_000;
        let limit = limit.max(interval() * 2);
        let silent = now > last + limit;
        if silent && !self.silent {
            pgrx::log!(
                "eskit_lease: the synchronous standbys have acknowledged no confirmation for {} ms; sessions are told to trust themselves for a TTL from the last one; see pg_stat_replication and synchronous_standby_names",
                (now - last) / 1_000
            );
        } else if self.silent && !silent {
            pgrx::log!("eskit_lease: the synchronous standbys acknowledge confirmations again");
        }
        self.silent = silent;
        if silent { now + limits::LOOK_AT_CONFIRMER_EVERY } else { (last + limit + 1_000).max(now + 10_000) }
    }
}
