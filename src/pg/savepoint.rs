//! Work that may fail without failing the transaction.

use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use std::panic::AssertUnwindSafe;

/// Runs work in a savepoint. If the work raises, rolls back to the savepoint and returns the message. If the work runs
/// statements, connect SPI before this call; the work itself must not connect.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // SAFETY: in a transaction; on either way out the savepoint is released or rolled back to, and memory context and
    // owner are as before
    unsafe {
        let (memory, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        let back = move || {
            pg_sys::MemoryContextSwitchTo(memory);
            pg_sys::CurrentResourceOwner = owner;
        };
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(memory);
        PgTryBuilder::new(AssertUnwindSafe(|| {
            let done = work();
            pg_sys::ReleaseCurrentSubTransaction();
            back();
            Ok(done)
        }))
        .catch_others(move |error| {
            pg_sys::MemoryContextSwitchTo(memory);
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            back();
            Err(message(&error))
        })
        .execute()
    }
}

/// Returns the message of an error that was raised.
pub fn message(error: &CaughtError) -> String {
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report.message().to_owned(),
        CaughtError::RustPanic { ereport, .. } => ereport.message().to_owned(),
    }
}
