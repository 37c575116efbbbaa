//! `lock_timeout`: for how long the caller wants locks to be waited for.

use pgrx::pg_sys;

/// The caller's lock_timeout in microseconds, if it has one.
pub fn of_caller() -> Option<u64> {
    // SAFETY: a plain read
    u64::try_from(unsafe { pg_sys::LockTimeout }).ok().filter(|limit| *limit > 0).map(|limit| limit * 1_000)
}

/// A lock_timeout for what is done while this lives, whatever is set.
pub struct LockTimeout(i32);

impl LockTimeout {
    pub fn begin(milliseconds: i32) -> LockTimeout {
        // SAFETY: a setting of this process, put back by Drop
        unsafe { LockTimeout((&raw mut pg_sys::LockTimeout).replace(milliseconds)) }
    }
}

impl Drop for LockTimeout {
    fn drop(&mut self) {
        // SAFETY: as above
        unsafe { pg_sys::LockTimeout = self.0 };
    }
}
