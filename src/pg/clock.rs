//! Time. Deadlines are microseconds of `CLOCK_BOOTTIME`: a step of the wall clock expires no session and extends none.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the microseconds since the machine was booted; the time of a suspension counts.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1_000
}

/// Returns the microseconds since 1970 by the wall clock. They are for people and for revisions, never for deadlines.
pub fn wall() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}

/// Returns a timestamptz as rows keep it: microseconds since 2000 by the wall clock.
pub fn timestamp() -> i64 {
    // SAFETY: no preconditions
    unsafe { pgrx::pg_sys::GetCurrentTimestamp() }
}

/// Sleeps for some microseconds, or until there is a signal.
pub fn pause(span: u64) {
    // SAFETY: no preconditions; the caller checks for interrupts
    unsafe { pgrx::pg_sys::pg_usleep(span as std::ffi::c_long) };
}

/// Returns the whole milliseconds of a span, rounded down, so that a client may trust them.
pub fn trust_ms(span: u64) -> i32 {
    i32::try_from(span / 1_000).unwrap_or(i32::MAX)
}
