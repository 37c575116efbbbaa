//! Intervals given by callers, in milliseconds and within their limits.

use crate::error::{Error, Result};
use crate::settings;
use pgrx::datum::Interval;

/// Milliseconds, with days of 24 hours and months of 30 days, as PostgreSQL compares intervals.
fn millis(interval: &Interval) -> i128 {
    let days = i128::from(interval.months()) * 30 + i128::from(interval.days());
    (days * 86_400_000_000 + i128::from(interval.micros())) / 1_000
}

fn within(what: &'static str, interval: &Interval, min_ms: i32, max_ms: i32) -> Result<i32> {
    let given_ms = millis(interval);
    i32::try_from(given_ms)
        .ok()
        .filter(|ms| (min_ms..=max_ms).contains(ms))
        .ok_or_else(|| Error::Interval { what, given_ms, min_ms: min_ms.into(), max_ms: max_ms.into() }.into())
}

/// The time to live of a session; the default where none is given.
pub fn ttl_ms(ttl: Option<Interval>) -> Result<i32> {
    let default = || Interval::from_micros(i64::from(settings::DEFAULT_TTL.get()) * 1_000);
    within("ttl", &ttl.unwrap_or_else(default), settings::MIN_TTL.get(), settings::MAX_TTL.get())
}

/// How long something may live on alone.
pub fn grace_ms(what: &'static str, grace: Interval) -> Result<i32> {
    within(what, &grace, 0, settings::MAX_TTL.get())
}

/// A delay that is given in days at most.
pub fn delay_ms(what: &'static str, delay: Interval) -> Result<i32> {
    within(what, &delay, 0, 86_400_000)
}

/// A delay of up to some 24 days.
pub fn retry_ms(what: &'static str, delay: Interval) -> Result<i32> {
    within(what, &delay, 0, i32::MAX)
}

/// How long a call may wait: no longer than the setting, which is also the default.
pub fn wait_ms(timeout: Option<Interval>) -> Result<u32> {
    let longest = settings::MAX_WAIT.get();
    let wait = match timeout {
        Some(timeout) => within("timeout", &timeout, 0, i32::MAX)?.min(longest),
        None => longest,
    };
    Ok(wait.cast_unsigned())
}
