//! Where the worker's next run of retention begins, for the rows of one kind (see [`crate::ending::retention`]).

use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The beginning of the next run. All bytes zero stand for the oldest row of all.
#[repr(C)]
pub struct Beginning {
    /// A time in microseconds since 2000: no row that may be deleted has ended before it. Zero stands for the oldest
    /// row of all. A run replaces the time by the greatest number, which transactions then lower.
    ended: AtomicI64,
    /// Whether a run has begun and has not set where the next one begins. If its worker leaves or fails, rows that the
    /// run has not reached remain, and `ended` does not cover them.
    is_open: AtomicBool,
}

impl Beginning {
    pub(super) fn clear(&self) {
        self.ended.store(0, Ordering::Release);
    }

    /// At the end of a transaction that has ended a row, lowers the time to that transaction's start. No row can have
    /// ended in it before its start.
    pub(super) fn lower_to_transaction(&self) {
        // SAFETY: a plain read; in the callbacks at its end the transaction is still the current one
        self.lower_to(unsafe { pg_sys::GetCurrentTransactionStartTimestamp() });
    }

    fn lower_to(&self, began: i64) {
        self.ended.fetch_min(began, Ordering::AcqRel);
    }

    /// Begins a run, and returns where it begins: at the oldest row of all if the last run did not finish. A database
    /// has one worker, so no two runs are under way at once.
    pub fn take(&self) -> i64 {
        let was_open = self.is_open.swap(true, Ordering::AcqRel);
        let ended = self.ended.swap(i64::MAX, Ordering::AcqRel);
        if was_open || ended == 0 { i64::MIN } else { ended }
    }

    /// Finishes a run, and makes the next one begin at a row that ended at `ended`. The next run begins still earlier
    /// if a transaction that has ended a row during this run began before `ended`.
    pub fn set(&self, ended: i64) {
        self.ended.fetch_min(ended, Ordering::AcqRel);
        self.is_open.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_did_not_finish_is_followed_by_one_from_the_oldest_row() {
        let beginning = Beginning { ended: AtomicI64::new(0), is_open: AtomicBool::new(false) };
        assert_eq!(beginning.take(), i64::MIN);
        beginning.lower_to(900);
        beginning.set(500);
        // This run begins where the last one ended, and its process leaves before it has set where the next one begins.
        assert_eq!(beginning.take(), 500);
        beginning.lower_to(1_000);
        assert_eq!(beginning.take(), i64::MIN);
        beginning.set(700);
        assert_eq!(beginning.take(), 700);
    }
}
