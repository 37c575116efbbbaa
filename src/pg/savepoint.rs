//! Work that may fail without taking the transaction along.

use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use std::panic::AssertUnwindSafe;

/// Runs work in a savepoint. Rolls back to it when the work raises, and returns the message. Work that runs statements
/// needs SPI connected before, and must not connect it.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // SAFETY: in a transaction; the savepoint is released, or rolled back to, on either way out, and leaves memory and
    // owner as they were
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

/// Returns the message of what has been raised.
pub fn message(error: &CaughtError) -> String {
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report.message().to_owned(),
        CaughtError::RustPanic { ereport, .. } => ereport.message().to_owned(),
    }
}
