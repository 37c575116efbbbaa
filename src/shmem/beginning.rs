//! Where the worker's next run of retention begins, for the rows of one kind (see [`crate::ending::retention`]).

use pgrx::pg_sys;
use std::sync::atomic::{AtomicI64, Ordering};

/// A time in microseconds since 2000: no row that may be deleted has ended before it. Zero stands for the oldest row of
/// all. During a run this is the greatest number, which the first lowering replaces.
#[repr(C)]
pub struct Beginning(AtomicI64);

impl Beginning {
    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// At the end of a transaction that has ended a row, lowers the time to that transaction's start. No row can have
    /// ended in it before its start.
    pub(super) fn lower_to_transaction(&self) {
        // SAFETY: a plain read; in the callbacks at its end the transaction is still the current one
        let began = unsafe { pg_sys::GetCurrentTransactionStartTimestamp() };
        self.0.fetch_min(began, Ordering::AcqRel);
    }

    /// Begins a run, and returns where it begins. If the run does not set where the next run begins, the next run
    /// begins at the oldest row of all.
    pub fn take(&self) -> i64 {
        match self.0.swap(i64::MAX, Ordering::AcqRel) {
            0 | i64::MAX => i64::MIN,
            ended => ended,
        }
    }

    /// Makes the next run begin at a row that ended at `ended`. If a transaction that began before `ended` has ended a
    /// row during this run, the next run begins earlier still.
    pub fn set(&self, ended: i64) {
        self.0.fetch_min(ended, Ordering::AcqRel);
    }
}
