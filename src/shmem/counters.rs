//! Counters: what has been counted of a database since it got its entry. `stats()` shows each under its name.
//!
//! The counters from [`Counter::SessionsOpened`] on count changes of rows. [`crate::seam`] adds to them at the commit,
//! so a transaction that is rolled back adds nothing. Calls add to the other counters at once.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Counter {
    Heartbeats,
    HeartbeatsRefused,
    Refusals,
    FenceChecks,
    FencesLost,
    WaitsRefused,
    HeartbeatsLate,
    Sweeps,
    Rescans,
    Rebalances,
    Notifications,
    SessionsOpened,
    SessionsClosed,
    SessionsExpired,
    Grants,
    Takeovers,
    HandOvers,
    Releases,
    ExecutionsBegun,
    ExecutionsFinished,
    ExecutionsFailed,
    ItemsAdded,
    ItemsClaimed,
    ItemsDone,
    ItemsFailed,
    ItemsDead,
    Revocations,
    Forces,
}

pub const COUNTERS: [&str; 28] = [
    "heartbeats",
    "heartbeats_refused",
    "refusals",
    "fence_checks",
    "fences_lost",
    "waits_refused",
    "heartbeats_late",
    "sweeps",
    "rescans",
    "rebalances",
    "notifications",
    "sessions_opened",
    "sessions_closed",
    "sessions_expired",
    "grants",
    "takeovers",
    "hand_overs",
    "releases",
    "executions_begun",
    "executions_finished",
    "executions_failed",
    "items_added",
    "items_claimed",
    "items_done",
    "items_failed",
    "items_dead",
    "revocations",
    "forces",
];

/// The first of the counters to which commits add; all later ones are such counters, too.
const FIRST_AT_COMMIT: usize = Counter::SessionsOpened as usize;
/// How many counters there are to which commits add.
pub const AT_COMMIT: usize = COUNTERS.len() - FIRST_AT_COMMIT;

impl Counter {
    /// Returns the index of a counter among those to which commits add.
    pub fn at_commit(self) -> usize {
        debug_assert!(self as usize >= FIRST_AT_COMMIT, "{self:?} is counted at once");
        self as usize - FIRST_AT_COMMIT
    }
}

/// Spans of time that are counted by their lengths.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Span {
    /// From the deadline or the release of a holder to the commit that grants the lease to the first in line, or the
    /// partition to its target.
    HandOver,
    /// A pass of the sweep (see [`crate::ending::sweep`]).
    Pass,
}

pub const SPANS: [&str; 2] = ["hand_over", "pass"];

/// The longest span of each range but the last, in milliseconds.
pub const RANGES: [u64; 11] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000];

/// Returns the range of a span in microseconds.
fn range(span: u64) -> usize {
    RANGES.iter().position(|most| span <= most * 1_000).unwrap_or(RANGES.len())
}

/// How many spans each range has.
pub type Ranges = [u64; RANGES.len() + 1];

pub fn count_span(ranges: &mut Ranges, span: u64) {
    ranges[range(span)] += 1;
}

#[repr(C)]
pub struct Counters {
    counters: [AtomicU64; COUNTERS.len()],
    spans: [[AtomicU64; RANGES.len() + 1]; SPANS.len()],
}

impl Counters {
    pub(super) fn clear(&self) {
        let all = self.counters.iter().chain(self.spans.iter().flatten());
        all.for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    pub fn add(&self, counter: Counter, by: u64) {
        debug_assert!((counter as usize) < FIRST_AT_COMMIT, "{counter:?} is counted at the commit");
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    pub fn get(&self, index: usize) -> u64 {
        self.counters[index].load(Ordering::Relaxed)
    }

    /// Adds what a transaction has counted, once it has committed.
    pub fn add_committed(&self, counted: &[u64; AT_COMMIT]) {
        for (counter, by) in self.counters[FIRST_AT_COMMIT..].iter().zip(counted) {
            if *by > 0 {
                counter.fetch_add(*by, Ordering::Relaxed);
            }
        }
    }

    /// Counts `by` spans of the same length.
    pub fn add_span(&self, span: Span, microseconds: u64, by: u64) {
        self.spans[span as usize][range(microseconds)].fetch_add(by, Ordering::Relaxed);
    }

    pub fn add_spans(&self, span: Span, ranges: &Ranges) {
        for (counter, by) in self.spans[span as usize].iter().zip(ranges) {
            if *by > 0 {
                counter.fetch_add(*by, Ordering::Relaxed);
            }
        }
    }

    /// Returns for each range how many spans are in it or in a shorter one.
    pub fn spans(&self, span: usize) -> Ranges {
        let mut so_far = 0;
        std::array::from_fn(|range| {
            so_far += self.spans[span][range].load(Ordering::Relaxed);
            so_far
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_in_the_range_that_ends_with_it() {
        let mut ranges = Ranges::default();
        for span in [0, 1_000, 1_001, 5_000_000, 5_000_001, u64::MAX] {
            count_span(&mut ranges, span);
        }
        assert_eq!(ranges, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn counters_have_the_names_of_their_places() {
        assert_eq!(COUNTERS[Counter::Forces as usize], "forces");
        assert_eq!(COUNTERS[Counter::SessionsOpened as usize], "sessions_opened");
        assert_eq!(COUNTERS[Counter::HandOvers as usize], "hand_overs");
        assert_eq!(COUNTERS[Counter::ExecutionsBegun as usize], "executions_begun");
        assert_eq!(Counter::Forces.at_commit(), AT_COMMIT - 1);
    }
}
