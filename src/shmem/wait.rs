//! Waiting for a session's revision. The waiter sleeps on the slot's condition variable, and wakes for a bump, for the
//! end of the session, for a timeout, and when its client is gone, which would not read the answer. A waiter that can
//! be of use also wakes when its database has work and there is no process for the worker (see [`crate::worker`]).

use super::databases::Database;
use super::shared::Shared;
use super::slot::SlotRef;
use super::standing::Standing;
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::clock;
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

impl Shared {
    /// Sleeps until the revision is greater than `revision`, the session has ended, or `until`; or, with `helps`, until
    /// help is asked for. Extends nothing.
    pub fn wait_for_revision(
        &self,
        database: &Database,
        at: SlotRef,
        revision: u64,
        until: u64,
        helps: bool,
    ) -> Result<Option<Standing>> {
        let condition = self.wait_of(at);
        // SAFETY: the condition variable lives in shared memory; an error on the way cancels the sleep in
        // AbortTransaction
        unsafe { pg_sys::ConditionVariablePrepareToSleep(condition) };
        let answer = loop {
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
            if !sleep(span) {
                // SAFETY: as above
                unsafe { pg_sys::ConditionVariableCancelSleep() };
                return Err(Error::ClientGone.into());
            }
            // Where there is no worker.
            self.feed_others(database, clock::now());
        };
        // SAFETY: as above
        unsafe { pg_sys::ConditionVariableCancelSleep() };
        Ok(answer)
    }
}

/// Sleeps for up to `span` microseconds, and no longer than it takes to see to the client.
pub fn pause(span: u64) -> Result<()> {
    if sleep(span) { Ok(()) } else { Err(Error::ClientGone.into()) }
}

/// Sleeps for up to `span` microseconds. Returns whether the client is still there.
fn sleep(span: u64) -> bool {
    unsafe extern "C-unwind" {
        fn pq_check_connection() -> bool;
    }
    let timeout = span.min(limits::LOOK_AT_CLIENT_EVERY).div_ceil(1_000) as std::ffi::c_long;
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: in a backend, outside of any lock; without a port there is no client
    unsafe {
        let occurred = pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, timeout, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pgrx::check_for_interrupts!();
        let looks = occurred as u32 & pg_sys::WL_TIMEOUT != 0 && !pg_sys::MyProcPort.is_null();
        !looks || pg_sys::ffi::pg_guard_ffi_boundary(|| pq_check_connection())
    }
}
