//! Intervals that callers give, in milliseconds and within their limits.

use super::error::{Error, Result};
use super::{limits, settings};
use pgrx::datum::Interval;

/// Returns milliseconds, with days of 24 hours and months of 30 days, as PostgreSQL compares intervals.
fn millis(interval: &Interval) -> i128 {
    let days = i128::from(interval.months()) * 30 + i128::from(interval.days());
    (days * 86_400_000_000 + i128::from(interval.micros())) / 1_000
}

/// Returns a span as people read it, as PostgreSQL shows settings. The unit is the greatest one that gives a whole
/// number.
pub fn told(ms: i128) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)];
    match units.into_iter().find(|(_, unit)| ms % unit == 0) {
        _ if ms == 0 => "0".to_owned(),
        Some((name, unit)) => format!("{} {name}", ms / unit),
        None => format!("{ms} ms"),
    }
}

fn within(what: &'static str, interval: &Interval, min_ms: i32, max_ms: i32) -> Result<i32> {
    let given_ms = millis(interval);
    i32::try_from(given_ms)
        .ok()
        .filter(|ms| (min_ms..=max_ms).contains(ms))
        .ok_or_else(|| Error::Interval { what, given_ms, min_ms: min_ms.into(), max_ms: max_ms.into() }.into())
}

/// Returns the time to live of a session; the default if none is given.
pub fn ttl_ms(ttl: Option<Interval>) -> Result<i32> {
    let default = || Interval::from_micros(i64::from(settings::DEFAULT_TTL.get()) * 1_000);
    let what = if ttl.is_some() { "ttl" } else { "eskit_lease.default_ttl" };
    within(what, &ttl.unwrap_or_else(default), settings::MIN_TTL.get(), settings::MAX_TTL.get())
}

/// Returns a grace: how long a session may outlive its connection, or a lease its release.
pub fn grace_ms(what: &'static str, grace: Interval) -> Result<i32> {
    within(what, &grace, 0, settings::MAX_TTL.get())
}

/// Returns a delay, which may be one day at most.
pub fn delay_ms(what: &'static str, delay: Interval) -> Result<i32> {
    within(what, &delay, 0, 86_400_000)
}

pub fn retry_ms(what: &'static str, delay: Interval) -> Result<i32> {
    within(what, &delay, 0, limits::LONGEST_INTERVAL_MS)
}

/// Returns how long a call may wait. The setting is the upper bound, and the default.
pub fn wait_ms(timeout: Option<Interval>) -> Result<u32> {
    let longest = settings::MAX_WAIT.get();
    let wait = match timeout {
        Some(timeout) => within("timeout", &timeout, 0, limits::LONGEST_INTERVAL_MS)?.min(longest),
        None => longest,
    };
    Ok(wait.cast_unsigned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn is_told_in_whole_units() {
        let spans = [0, 1, 999, 1_000, 90_000, -60_000, 3_600_000, 5_400_000, 86_400_000, 86_400_001];
        let told = ["0", "1 ms", "999 ms", "1 s", "90 s", "-1 min", "1 h", "90 min", "1 d", "86400001 ms"];
        assert_eq!(spans.map(super::told), told);
    }
}
