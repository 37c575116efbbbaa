//! Where the worker's next run of retention begins with the rows of one kind (see [`crate::ending::retention`]).

use pgrx::pg_sys;
use std::sync::atomic::{AtomicI64, Ordering};

/// The end of a row, in microseconds since 2000, so that no row that may be deleted has an earlier one; zero for the
/// oldest row of all. While a run is on, the greatest number, which the first lowering replaces.
#[repr(C)]
pub struct Beginning(AtomicI64);

impl Beginning {
    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// At the end of a transaction that has ended a row: no row of it has an earlier end than the transaction's start.
    pub(super) fn lower_to_transaction(&self) {
        // SAFETY: a plain read; in the callbacks at its end it still is that transaction's
        let began = unsafe { pg_sys::GetCurrentTransactionStartTimestamp() };
        self.0.fetch_min(began, Ordering::AcqRel);
    }

    /// Begins a run. Returns where. Unless that run says where the next one begins, it is at the oldest row of all.
    pub fn take(&self) -> i64 {
        match self.0.swap(i64::MAX, Ordering::AcqRel) {
            0 | i64::MAX => i64::MIN,
            ended => ended,
        }
    }

    /// Has the next run begin at a row, or before it if a transaction that began earlier has ended a row meanwhile.
    pub fn set(&self, ended: i64) {
        self.0.fetch_min(ended, Ordering::AcqRel);
    }
}
