//! Waiting for a session's revision. The waiter sleeps on the condition variable of the session's slot. A new revision,
//! the end of the session or a timeout wakes it. If its client is gone, and would not read the answer, its backend
//! ends. A waiter that offers help also wakes when its database has work and the worker has no process (see
//! [`crate::worker`]). A process sleeps on one condition variable at most. So a call that waits for several sessions
//! sleeps on its latch, which is noted for each of them.

use super::databases::Database;
use super::news::Again;
use super::shared::Shared;
use super::slot::SlotRef;
use super::standing::Standing;
use crate::base::limits;
use crate::pg::clock;
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

impl Shared {
    /// Sleeps until the session's revision is greater than `revision`, the session has ended, or the time `until` has
    /// come. With `helps` it also returns when the launcher asks waiting calls for help. The wait does not extend the
    /// session.
    pub fn wait_for_revision(
        &self,
        database: &Database,
        at: SlotRef,
        revision: u64,
        until: u64,
        helps: bool,
    ) -> Option<Standing> {
        let condition = self.wait_of(at);
        // SAFETY: the condition variable lives in shared memory; if an error is raised, AbortTransaction cancels the
        // sleep
        unsafe { pg_sys::ConditionVariablePrepareToSleep(condition) };
        let mut again = Again::new();
        let answer = loop {
            let next = if self.look_for_news(at) { again.next() } else { u64::MAX };
            let standing = self.look(at);
            let Some(seen) = standing else { break standing };
            if !seen.alive() || seen.revision > revision || seen.now >= until {
                break standing;
            }
            if helps {
                database.offer_help();
                if database.asked.load(Ordering::Acquire) {
                    break standing;
                }
            }
            let span = until.min(seen.until).saturating_sub(clock::now());
            pause(span.min(next));
            // The worker also wakes other sessions; this call does so in case there is no worker.
            self.feed_others(database, clock::now());
        };
        // SAFETY: as above
        unsafe { pg_sys::ConditionVariableCancelSleep() };
        answer
    }

    /// Sleeps until one of the sessions has ended or has a revision greater than the one beside it, or it is `until`.
    /// With `helps` it also returns when the launcher asks for help. The caller has a place among the waiting calls.
    /// When it gives the place back, the notes that this function makes are removed.
    pub fn wait_for_any(&self, database: &Database, waited: &[(SlotRef, u64)], until: u64, helps: bool) {
        waited.iter().for_each(|(at, _)| self.listens(*at, true));
        let mut again = Again::new();
        loop {
            let mut next = until;
            let mut has_news = false;
            for (at, revision) in waited {
                has_news |= self.look_for_news(*at);
                match self.look(*at).filter(Standing::alive) {
                    Some(seen) if seen.revision <= *revision => next = next.min(seen.until),
                    _ => return,
                }
            }
            let now = clock::now();
            if now >= until {
                return;
            }
            if helps {
                database.offer_help();
                if database.asked.load(Ordering::Acquire) {
                    return;
                }
            }
            pause(next.saturating_sub(now).min(if has_news { again.next() } else { u64::MAX }));
            self.feed_others(database, clock::now());
        }
    }
}

/// Sleeps until the latch is set, for `span` microseconds, or until the next check of the client. If the client is
/// gone, this ends the backend as PostgreSQL does with `client_connection_check_interval`. An ERROR would be sent to
/// that client; sending it fails, and logs as many lines again.
pub fn pause(span: u64) {
    unsafe extern "C-unwind" {
        fn pq_check_connection() -> bool;
    }
    let timeout = span.min(limits::LOOK_AT_CLIENT_EVERY).div_ceil(1_000) as std::ffi::c_long;
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: in a backend, outside of any lock; without a port there is no client
    unsafe {
        let occurred = pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, timeout, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        let looks = occurred as u32 & pg_sys::WL_TIMEOUT != 0 && !pg_sys::MyProcPort.is_null();
        if looks && !pg_sys::ffi::pg_guard_ffi_boundary(|| pq_check_connection()) {
            pg_sys::ClientConnectionLost = 1;
            pg_sys::InterruptPending = 1;
        }
        pgrx::check_for_interrupts!();
    }
}
