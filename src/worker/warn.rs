//! Warnings of the launcher about the clock and the settings, for the log.

use crate::base::interval::told;
use crate::base::settings;
use crate::pg::server;
use pgrx::pg_sys;

/// Warns if the clock is behind the last transaction that was recovered. Fences rely on a clock that is not far behind
/// what an earlier history of this server saw.
pub fn of_the_clock() {
    // SAFETY: plain reads
    let (replayed, now) = unsafe { (pg_sys::GetLatestXTime(), pg_sys::GetCurrentTimestamp()) };
    if replayed > now {
        pgrx::warning!(
            "eskit_lease: the clock is {} s behind the last transaction that was recovered; set it right before leases are granted",
            (replayed - now) / 1_000_000
        );
    }
}

/// Warns if parallel queries may leave too few processes for the launcher and the workers.
pub fn of_the_slots() {
    let number = |name| server::integer_setting(name).cast_signed();
    let (slots, parallel) = (number(c"max_worker_processes"), number(c"max_parallel_workers"));
    let others = i32::from(number(c"max_logical_replication_workers") > 0);
    let confirmer = i32::from(settings::CONFIRM_INTERVAL.get() > 0);
    let wanted = 1 + settings::MAX_WORKERS.get() + confirmer + others;
    if slots - parallel.min(slots) < wanted {
        pgrx::warning!(
            "eskit_lease: parallel queries may leave no process for database workers: max_worker_processes is {slots}, which is to be at least max_parallel_workers ({parallel}) and {wanted} more"
        );
    }
}

/// The limits of the time to live that were last looked at. PostgreSQL checks each setting alone, as it may be read
/// before the others.
#[derive(Default, PartialEq, Eq)]
pub struct TtlLimits {
    min: i32,
    max: i32,
    default: i32,
}

impl TtlLimits {
    /// Warns if the settings, as they are now, leave no time to live, or not the default. Warns once for each change.
    pub fn tell(&mut self) {
        let (min, max, default) = (settings::MIN_TTL.get(), settings::MAX_TTL.get(), settings::DEFAULT_TTL.get());
        if std::mem::replace(self, TtlLimits { min, max, default }) == *self {
            return;
        }
        let told = |ms: i32| told(ms.into());
        if min > max {
            let (min, max) = (told(min), told(max));
            pgrx::warning!(
                "eskit_lease: eskit_lease.min_ttl is {min}, and eskit_lease.max_ttl {max}: no session can be opened; raise max_ttl or lower min_ttl"
            );
        } else if !(min..=max).contains(&default) {
            let (default, min, max) = (told(default), told(min), told(max));
            pgrx::warning!(
                "eskit_lease: eskit_lease.default_ttl is {default}, and not within min_ttl ({min}) and max_ttl ({max}): only sessions that ask for a ttl can be opened"
            );
        }
    }
}
