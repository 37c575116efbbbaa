//! What a transaction counts. It is added to the counters when the transaction commits, and a rollback forgets it.

use crate::base::limits;
use crate::pg::clock;
use crate::shmem::counters::{AT_COMMIT, Counter, Ranges, Span, count_span};
use crate::shmem::databases::Database;
use pgrx::pg_sys::SubTransactionId;

/// What one subtransaction counts.
struct Part {
    subtransaction: SubTransactionId,
    counted: [u64; AT_COMMIT],
    /// For each lease that it hands over, since when that lease has been free.
    free_since: Vec<u64>,
    /// The spans of further hand-overs, up to the grants.
    spans: Ranges,
}

/// The parts of the open subtransactions that count something, the innermost last.
pub struct Tally(Vec<Part>);

impl Tally {
    pub const fn new() -> Tally {
        Tally(Vec::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(&mut self, now: SubTransactionId) -> &mut Part {
        if self.0.last().is_none_or(|part| part.subtransaction != now) {
            self.0.push(Part {
                subtransaction: now,
                counted: [0; AT_COMMIT],
                free_since: Vec::new(),
                spans: Ranges::default(),
            });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    pub fn count(&mut self, now: SubTransactionId, counter: Counter, by: u64) {
        self.of(now).counted[counter.at_commit()] += by;
    }

    /// Counts a hand-over of a lease; `free_since` is not always known.
    pub fn handed_over(&mut self, now: SubTransactionId, free_since: Option<u64>) {
        self.count(now, Counter::HandOvers, 1);
        if let Some(since) = free_since {
            self.span(now, since);
        }
    }

    fn span(&mut self, now: SubTransactionId, free_since: u64) {
        let part = self.of(now);
        if part.free_since.len() < limits::MAX_NOTES {
            part.free_since.push(free_since);
        } else {
            count_span(&mut part.spans, clock::now().saturating_sub(free_since));
        }
    }

    /// Gives the part of a subtransaction to its parent when it commits.
    pub fn hand_up(&mut self, mine: SubTransactionId, parent: SubTransactionId) {
        let Some(part) = self.0.pop_if(|part| part.subtransaction == mine) else { return };
        let into = self.of(parent);
        for (into, by) in into.counted.iter_mut().zip(part.counted) {
            *into += by;
        }
        for (into, by) in into.spans.iter_mut().zip(part.spans) {
            *into += by;
        }
        part.free_since.into_iter().for_each(|since| self.span(parent, since));
    }

    pub fn take_back(&mut self, mine: SubTransactionId) {
        self.0.pop_if(|part| part.subtransaction == mine);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns what the whole transaction counts.
    pub fn counted(&self) -> [u64; AT_COMMIT] {
        let mut counted = [0; AT_COMMIT];
        for part in &self.0 {
            counted.iter_mut().zip(part.counted).for_each(|(into, by)| *into += by);
        }
        counted
    }

    /// Returns since when the lease that has waited longest for its hand-over has been free; zero without one.
    pub fn free_since(&self) -> u64 {
        self.0.iter().flat_map(|part| &part.free_since).min().copied().unwrap_or(0)
    }

    /// Adds what the transaction counts to the counters. The transaction has committed.
    pub fn commit(&self, database: &Database) {
        if self.is_empty() {
            return;
        }
        database.counters.add_committed(&self.counted());
        let now = clock::now();
        for part in &self.0 {
            for since in &part.free_since {
                database.counters.add_span(Span::HandOver, now.saturating_sub(*since), 1);
            }
            database.counters.add_spans(Span::HandOver, &part.spans);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(tally: &Tally) -> u64 {
        tally.counted()[Counter::ItemsAdded.at_commit()]
    }

    #[test]
    fn a_subtransaction_that_is_rolled_back_counts_nothing() {
        let mut tally = Tally::new();
        tally.count(1, Counter::ItemsAdded, 1);
        tally.count(2, Counter::ItemsAdded, 10);
        tally.count(3, Counter::ItemsAdded, 100);
        tally.hand_up(3, 2);
        assert_eq!(added(&tally), 111);
        tally.take_back(2);
        assert_eq!(added(&tally), 1);
        // A subtransaction that counts nothing takes nothing away from its parent.
        tally.take_back(4);
        tally.hand_up(5, 1);
        assert_eq!(added(&tally), 1);
        tally.count(6, Counter::ItemsAdded, 1_000);
        tally.hand_up(6, 4);
        tally.hand_up(4, 1);
        assert_eq!(added(&tally), 1_001);
    }

    #[test]
    fn hand_overs_are_bounded() {
        let mut tally = Tally::new();
        for n in 0..limits::MAX_NOTES as u64 + 5 {
            tally.handed_over(2, Some(n + 1));
        }
        tally.handed_over(2, None);
        tally.hand_up(2, 1);
        assert_eq!(
            (tally.free_since(), tally.counted()[Counter::HandOvers.at_commit()]),
            (1, limits::MAX_NOTES as u64 + 6)
        );
        let part = &tally.0[0];
        assert_eq!((part.free_since.len(), part.spans.iter().sum::<u64>()), (limits::MAX_NOTES, 5));
    }
}
