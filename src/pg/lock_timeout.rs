//! `lock_timeout`: how long the caller lets a statement wait for a lock.

use pgrx::pg_sys;

/// Returns the caller's lock_timeout in microseconds, if there is one.
pub fn of_caller() -> Option<u64> {
    // SAFETY: a plain read
    u64::try_from(unsafe { pg_sys::LockTimeout }).ok().filter(|limit| *limit > 0).map(|limit| limit * 1_000)
}

/// Sets lock_timeout while this value lives, whatever the caller has set.
pub struct LockTimeout(i32);

impl LockTimeout {
    pub fn begin(milliseconds: i32) -> LockTimeout {
        // SAFETY: a setting of this process, restored by Drop
        unsafe { LockTimeout((&raw mut pg_sys::LockTimeout).replace(milliseconds)) }
    }
}

impl Drop for LockTimeout {
    fn drop(&mut self) {
        // SAFETY: as above
        unsafe { pg_sys::LockTimeout = self.0 };
    }
}
