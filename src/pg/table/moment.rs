//! What had been committed at a moment, whatever was committed after it.

use super::tuple::Tuple;
use pgrx::pg_sys;

/// A moment: what was committed then, or done by this transaction.
pub struct Moment(pg_sys::Snapshot);

impl Moment {
    pub fn now() -> Moment {
        // SAFETY: in a transaction
        Moment(unsafe { pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()) })
    }

    /// Returns whether this version of a row was there at that moment. The row must not be in flight.
    pub fn shows(&self, row: &Tuple) -> bool {
        let by = row.made_by();
        // SAFETY: the snapshot is registered; reads PostgreSQL's lists of transactions
        unsafe { pg_sys::TransactionIdIsCurrentTransactionId(by) || !pg_sys::XidInMVCCSnapshot(by, self.0) }
    }

    /// Returns whether this version of a row was gone at that moment: other transactions had made it, and had deleted
    /// or changed it, and had committed.
    pub fn has_gone(&self, row: &Tuple) -> bool {
        // SAFETY: the snapshot is registered; reads PostgreSQL's lists of transactions
        let was_over = |by| unsafe {
            !pg_sys::TransactionIdIsCurrentTransactionId(by)
                && !pg_sys::XidInMVCCSnapshot(by, self.0)
                && (by == pg_sys::FrozenTransactionId || pg_sys::TransactionIdDidCommit(by))
        };
        was_over(row.made_by()) && row.changed_by().is_some_and(was_over)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: registered by now()
            unsafe { pg_sys::UnregisterSnapshot(self.0) };
        }
    }
}
