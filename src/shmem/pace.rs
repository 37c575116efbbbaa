//! Pace: the numbers of a sequence (fences, or the ids of work items) stay behind the clock.
//!
//! Every start of the server raises a sequence to a clock that counts [`PER_SECOND`]. So the sequence begins above all
//! numbers that were given before, even by a timeline that is lost, as long as no sequence outruns the clock. Numbers
//! are [`STEP`] apart: 65,536 numbers a second never catch up with the clock, and numbers not drawn since the start are
//! saved up. A process that draws faster waits for the clock before it returns the number.
//!
//! The low bits, below the step, are drawn at random at each raise, and stay until the next. Two servers with a common
//! past, such as two standbys promoted from one primary, share numbers only if they drew the same bits: one pair in 64.
//!
//! A restore into a database in use sets a sequence back, below numbers that sessions have drawn meanwhile. So a pace
//! keeps the greatest number drawn. A number that is far below it shows that the sequence was set back. Then the
//! sequence is raised again.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// How far a sequence may come in a second, as in sql/query/fence/raise.sql.
const PER_SECOND: i64 = 1 << 22;
/// The difference of two numbers, as in sql/schema.sql.
const STEP: i64 = 64;
/// Microseconds. A sequence further ahead than this was set by hand, and counts from there: otherwise all callers might
/// wait for days.
const BY_HAND: u64 = 60_000_000;

#[repr(C)]
#[derive(Default)]
pub struct Pace {
    /// The value to which the sequence was raised.
    from: AtomicI64,
    /// When it was raised, by the clock of shared memory.
    since: AtomicU64,
    /// The greatest number that was drawn since.
    greatest: AtomicI64,
}

impl Pace {
    pub fn begin(&self, from: i64, now: u64) {
        // In this order a process that reads between the two stores need not wait.
        self.from.store(from, Ordering::Release);
        self.greatest.store(from, Ordering::Release);
        self.since.store(now, Ordering::Release);
    }

    /// Notes a number that was drawn. Returns the greatest one if the sequence has been set back since. A process that
    /// is slow to note its number is behind the others by less than they draw in a second.
    pub fn is_set_back(&self, number: i64) -> Option<i64> {
        let greatest = self.greatest.fetch_max(number, Ordering::AcqRel);
        (number < greatest - PER_SECOND).then_some(greatest)
    }

    /// Returns how many microseconds the clock needs to reach a number; zero if it is past the number.
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

/// Returns how many microseconds a sequence is ahead of the clock. `come`: how far it has come in `elapsed`
/// microseconds.
fn ahead(come: i64, elapsed: u64) -> u64 {
    // One step is free, as the first number is drawn at once.
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
    fn a_sequence_that_is_set_back_is_found() {
        let pace = Pace::default();
        pace.begin(10 * PER_SECOND, 5);
        assert_eq!(pace.is_set_back(11 * PER_SECOND), None);
        assert_eq!(pace.is_set_back(11 * PER_SECOND - STEP), None, "a slower process");
        assert_eq!(pace.is_set_back(9 * PER_SECOND), Some(11 * PER_SECOND));
        pace.begin(12 * PER_SECOND, 6);
        assert_eq!(pace.is_set_back(12 * PER_SECOND), None);
    }

    #[test]
    fn what_is_set_by_hand_is_not_waited_for() {
        let pace = Pace::default();
        pace.begin(1_000, 5);
        let day = 86_400 * PER_SECOND;
        assert_eq!(pace.ahead(1_000 + PER_SECOND + STEP, 5), 1_000_000);
        assert_eq!(pace.ahead(day, 5), 0);
        assert_eq!(pace.ahead(day + PER_SECOND + STEP, 5), 1_000_000);
    }
}
