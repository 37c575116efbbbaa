//! Latches: how a process is woken.
//!
//! The latches of the launcher and of database workers are kept as pointers into PostgreSQL's array of processes. A
//! stale pointer wakes another process. That does no harm: the process looks around and sleeps on, as after any
//! wake-up.

use pgrx::pg_sys;
use std::sync::atomic::{AtomicPtr, Ordering};

pub fn set_latch(latch: &AtomicPtr<pg_sys::Latch>) {
    let latch = latch.load(Ordering::Acquire);
    if !latch.is_null() {
        // SAFETY: a latch of PostgreSQL's array of processes, which lives as long as shared memory
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// Returns the latch of this process, in shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: MyProc is set in every process that is attached to shared memory
    unsafe { &raw mut (*pg_sys::MyProc).procLatch }
}
