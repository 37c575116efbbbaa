//! Time. Deadlines are microseconds of `CLOCK_BOOTTIME`: a step of the wall clock expires no session and extends none.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the machine was booted, suspended or not.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1_000
}

/// Microseconds since 1970 by the wall clock. For people and for revisions, never for deadlines.
pub fn wall() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}

/// What rows keep as a timestamptz: microseconds since 2000 by the wall clock.
pub fn timestamp() -> i64 {
    // SAFETY: no preconditions
    unsafe { pgrx::pg_sys::GetCurrentTimestamp() }
}

/// Sleeps for some microseconds, or until there is a signal.
pub fn pause(span: u64) {
    // SAFETY: no preconditions; a caller looks at interrupts by itself
    unsafe { pgrx::pg_sys::pg_usleep(span as std::ffi::c_long) };
}

/// The whole milliseconds of a span, never more than there are: what a program may trust.
pub fn trust_ms(span: u64) -> i32 {
    i32::try_from(span / 1_000).unwrap_or(i32::MAX)
}
