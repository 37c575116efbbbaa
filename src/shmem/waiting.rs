//! The calls that wait in one database: how many there are, and when those that are refused come back.
//!
//! A pooler has few connections, and each waiting call keeps one. If waiting calls had all of them, the heartbeats of
//! all sessions would stand in line before the pooler, and sessions would expire. So few calls wait, and the others are
//! told to come back later. Refused calls get turns, one each [`limits::RETRY_EVERY`]. A few calls are back soon;
//! thousands ask no more often than their heartbeats are due. Nothing here knows PostgreSQL.

use crate::base::limits;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[repr(C)]
#[derive(Default)]
pub struct Waiting {
    /// Calls that have a place.
    taken: AtomicU32,
    /// Calls on the connections that their sessions are attached to. No pooler is in between, so they need no place.
    direct: AtomicU32,
    /// The last turn that a refused call was given.
    turn: AtomicU64,
    /// When the log last told of refused and late calls, and how many had been counted by then.
    told_at: AtomicU64,
    told: AtomicU64,
}

impl Waiting {
    pub fn clear(&self) {
        self.taken.store(0, Ordering::Relaxed);
        self.direct.store(0, Ordering::Relaxed);
        [&self.turn, &self.told_at, &self.told].into_iter().for_each(|field| field.store(0, Ordering::Relaxed));
    }

    /// Returns how many calls wait.
    pub fn calls(&self) -> u32 {
        self.taken.load(Ordering::Acquire) + self.direct.load(Ordering::Acquire)
    }

    fn kind(&self, direct: bool) -> &AtomicU32 {
        if direct { &self.direct } else { &self.taken }
    }

    /// Begins a wait, unless it needs a place and `most` are taken.
    pub fn begin(&self, direct: bool, most: u32) -> bool {
        let free = |calls: u32| (direct || calls < most).then_some(calls + 1);
        self.kind(direct).fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).is_ok()
    }

    pub fn end(&self, direct: bool) {
        self.kind(direct).fetch_update(Ordering::AcqRel, Ordering::Relaxed, |calls| calls.checked_sub(1)).ok();
    }

    /// Returns in how many microseconds a refused call has its turn, after `longest` at the latest.
    pub fn turn_in(&self, now: u64, longest: u64) -> u64 {
        let latest = now + longest;
        let next = |last: u64| (last + limits::RETRY_EVERY).max(latest.min(now + limits::FIRST_RETRY));
        let step = |last: u64| (next(last) <= latest).then(|| next(last));
        let turn = self.turn.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step);
        turn.map_or(longest, |last| next(last) - now)
    }

    /// Returns whether the log must tell of refused and late calls; `counted` have been counted so far.
    pub fn must_tell(&self, counted: u64, now: u64) -> bool {
        let told_at = self.told_at.load(Ordering::Relaxed);
        let soon = told_at != 0 && now < told_at + limits::WAITS_TOLD_EVERY;
        if soon || counted < self.told.load(Ordering::Relaxed) + limits::FEW_WAITS {
            return false;
        }
        let mine = self.told_at.compare_exchange(told_at, now, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if mine {
            self.told.store(counted, Ordering::Relaxed);
        }
        mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;
    const LONGEST: u64 = 3_333_333;

    #[test]
    fn a_few_are_back_soon_and_many_ask_no_oftener_than_their_heartbeats() {
        let waiting = Waiting::default();
        let turns: Vec<u64> = (0..1_000).map(|_| waiting.turn_in(NOW, LONGEST)).collect();
        assert_eq!(turns[0], limits::FIRST_RETRY);
        assert!(turns[..100].windows(2).all(|two| two[1] - two[0] == limits::RETRY_EVERY));
        assert!(turns[200..].iter().all(|turn| *turn == LONGEST));
        // Calls that come back find turns after the last one.
        assert_eq!(waiting.turn_in(NOW + LONGEST, LONGEST), limits::FIRST_RETRY);
    }

    #[test]
    fn no_turn_is_later_than_asked_for() {
        let waiting = Waiting::default();
        (0..1_000).for_each(|_| assert!(waiting.turn_in(NOW, 10_000) <= 10_000));
    }

    #[test]
    fn direct_calls_need_no_place() {
        let waiting = Waiting::default();
        assert!(
            waiting.begin(false, 1) && !waiting.begin(false, 1) && waiting.begin(true, 1) && waiting.begin(true, 1)
        );
        assert_eq!(waiting.calls(), 3);
        waiting.end(false);
        waiting.end(true);
        assert!(waiting.begin(false, 1) && !waiting.begin(false, 1));
    }

    #[test]
    fn the_log_tells_rarely_and_not_of_a_few() {
        let waiting = Waiting::default();
        assert!(!waiting.must_tell(limits::FEW_WAITS - 1, NOW) && waiting.must_tell(limits::FEW_WAITS, NOW));
        let later = NOW + limits::WAITS_TOLD_EVERY;
        assert!(!waiting.must_tell(1_000, later - 1) && waiting.must_tell(1_000, later));
        assert!(!waiting.must_tell(1_001, later + limits::WAITS_TOLD_EVERY));
    }
}
