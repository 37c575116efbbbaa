//! Pace: the numbers of a sequence (fences, or those of work items) stay behind the clock.
//!
//! Every start of the server raises a sequence to what the clock has reached, at [`PER_SECOND`], and so starts above
//! all that an older history can have given: as long as no history outruns the clock. Numbers are [`STEP`] apart, so
//! 65,536 a second stay behind it for ever, beside what has not been drawn since the start. A process that draws faster
//! than that waits until the clock is there, before it tells the number.
//!
//! The low bits, below the step, are drawn by chance at each raise, and stay until the next. Two histories of one
//! database, such as two standbys that are promoted from one primary, share a number only if they have drawn the same
//! bits: one pair in 64.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Of a sequence's values, what a second is worth. As in sql/query/fence/raise.sql.
const PER_SECOND: i64 = 1 << 22;
/// What is between two numbers, as in sql/schema.sql.
const STEP: i64 = 64;
/// Further ahead, in microseconds, is only what was set by hand, and counts from there: it could keep all waiting for
/// days.
const BY_HAND: u64 = 60_000_000;

#[repr(C)]
pub struct Pace {
    /// Where the sequence was raised to.
    from: AtomicI64,
    /// When, by the clock of shared memory.
    since: AtomicU64,
}

impl Pace {
    pub fn begin(&self, from: i64, now: u64) {
        // In this order a process that reads between the two may pass, and need not wait.
        self.from.store(from, Ordering::Release);
        self.since.store(now, Ordering::Release);
    }

    /// Returns how long it takes the clock to get to a number, in microseconds; zero for one that is behind it.
    pub fn ahead(&self, number: i64, now: u64) -> u64 {
        let since = self.since.load(Ordering::Acquire);
        let ahead = ahead(number - self.from.load(Ordering::Acquire), now.saturating_sub(since));
        if ahead > BY_HAND {
            self.begin(number, now);
            return 0;
        }
        ahead
    }
}

/// The same, by how far the sequence has come in a time.
fn ahead(come: i64, elapsed: u64) -> u64 {
    // A step of grace, as the first number is drawn at once.
    let due = i128::from(come - STEP) * 1_000_000 / i128::from(PER_SECOND) - i128::from(elapsed);
    u64::try_from(due.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_behind_the_clock() {
        let second = 1_000_000;
        assert_eq!(ahead(0, 0), 0);
        assert_eq!(ahead(STEP, 0), 0);
        assert_eq!(ahead(65_536 * STEP, second), 0);
        assert_eq!(ahead((2 * 65_536 + 1) * STEP, second), second);
        assert_eq!(ahead(-1, 0), 0);
    }

    #[test]
    fn what_is_set_by_hand_is_not_waited_for() {
        let pace = Pace { from: AtomicI64::new(0), since: AtomicU64::new(0) };
        pace.begin(1_000, 5);
        let day = 86_400 * PER_SECOND;
        assert_eq!(pace.ahead(1_000 + PER_SECOND + STEP, 5), 1_000_000);
        assert_eq!(pace.ahead(day, 5), 0);
        assert_eq!(pace.ahead(day + PER_SECOND + STEP, 5), 1_000_000);
    }
}
