//! What had been committed at a moment, whatever has been since.

use super::tuple::Tuple;
use pgrx::pg_sys;

/// What was committed at a moment, or done by this transaction.
pub struct Moment(pg_sys::Snapshot);

impl Moment {
    pub fn now() -> Moment {
        // SAFETY: in a transaction
        Moment(unsafe { pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()) })
    }

    /// Returns whether a row that is not in flight was there, as this version of it, at that moment.
    pub fn shows(&self, row: &Tuple) -> bool {
        let by = row.made_by();
        // SAFETY: the snapshot is registered; reads PostgreSQL's lists of transactions
        unsafe { pg_sys::TransactionIdIsCurrentTransactionId(by) || !pg_sys::XidInMVCCSnapshot(by, self.0) }
    }

    /// Returns whether other transactions had made this version of a row, and deleted or changed it, and had committed
    /// at that moment.
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
