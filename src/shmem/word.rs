//! The word of a slot: a deadline, a state and a count in 64 bits, so that every step of a session's life is one
//! compare-and-swap.
//!
//! | from            | step                     | to                                              |
//! |-----------------|--------------------------|-------------------------------------------------|
//! | `Free`          | open                     | `Alive`, deadline                               |
//! | `Free`          | make again from the row after a restart | `Alive` or, if an end is prepared, `Frozen`; deadline |
//! | `Alive`         | heartbeat, not past      | `Alive`, later deadline                         |
//! | `Alive`         | freeze (pre-commit of an early end) | `Frozen`, same deadline              |
//! | `Frozen`        | thaw (abort)             | `Alive`, same deadline                          |
//! | `Alive`, `Frozen` | expire, past           | `Dead`, for as long as its slot is kept from its deadline on |
//! | `Alive`, `Frozen` | end (commit of an early end) | `Dead` or `Gone`, for as long as its slot is kept from now on |
//! | `Dead`          | bury (its rows are gone) | `Gone`, same time                               |
//! | `Gone`          | reclaim, past            | `Free`                                          |
//!
//! No step leads from `Dead` to `Alive`. The count grows with each session that the slot has. Without the count, a
//! process that is stopped after it has read one session's word could mistake the word of a later session, with the
//! same deadline, for the one that it has read. Times are microseconds of `CLOCK_BOOTTIME`. Nothing here knows
//! PostgreSQL.

/// Low bits of the word that hold the state; above them is the count.
const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const TIME_SHIFT: u32 = STATE_BITS + u8::BITS;
/// The latest time that a word can hold; 285 years.
pub const FOREVER: u64 = u64::MAX >> TIME_SHIFT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot has no session.
    Free,
    /// The session has its leases until its deadline.
    Alive,
    /// The session's early end is being committed, or is prepared. Calls are answered with the remaining time, and no
    /// heartbeat extends it.
    Frozen,
    /// The session has ended. The worker removes the rows that may remain of it.
    Dead,
    /// The session has ended, and no row of it is left. The word is a tombstone: a process that still sees the
    /// session's row does not revive it.
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Returns the word for the slot's next session.
    pub fn next(self, state: State, at: u64) -> Word {
        Word::of(self.count().wrapping_add(1), state, at)
    }

    fn of(count: u8, state: State, at: u64) -> Word {
        Word(at.min(FOREVER) << TIME_SHIFT | u64::from(count) << STATE_BITS | state as u64)
    }

    /// Returns the word of the same session, in another state or with another time.
    fn with(self, state: State, at: u64) -> Word {
        Word::of(self.count(), state, at)
    }

    /// Returns the word of a slot without a session. Its time field holds `number`.
    pub fn free(self, number: u64) -> Word {
        self.with(State::Free, number)
    }

    pub fn count(self) -> u8 {
        (self.0 >> STATE_BITS) as u8
    }

    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            1 => State::Alive,
            2 => State::Frozen,
            3 => State::Dead,
            4 => State::Gone,
            _ => State::Free,
        }
    }

    /// Returns the deadline of a living session; of a dead one, the end of its tombstone.
    pub fn at(self) -> u64 {
        self.0 >> TIME_SHIFT
    }

    /// Returns when the session's time ends, or has ended. `kept`: how long the slot is kept after that.
    pub fn end_of_time(self, cap: u64, kept: u64) -> u64 {
        match self.state() {
            State::Dead | State::Gone => self.at().saturating_sub(kept),
            _ => self.at().min(cap),
        }
    }

    /// Returns whether the session has its leases at `now`. `cap` is a deadline that heartbeats cannot move.
    pub fn lives(self, cap: u64, now: u64) -> bool {
        matches!(self.state(), State::Alive | State::Frozen) && now < self.at().min(cap)
    }

    /// Returns the word after a heartbeat at `now`; `None` if the session can no longer be extended.
    pub fn beat(self, cap: u64, now: u64, ttl: u64) -> Option<Word> {
        (self.state() == State::Alive && self.lives(cap, now))
            .then(|| self.with(State::Alive, self.at().max(now.saturating_add(ttl))))
    }

    /// Returns how much later a heartbeat at `now` comes than a third of the TTL after the one before.
    pub fn late(self, now: u64, ttl: u64) -> u64 {
        (now + ttl).saturating_sub(self.at()).saturating_sub(ttl / 3)
    }

    pub fn freeze(self, cap: u64, now: u64) -> Option<Word> {
        (self.state() == State::Alive && self.lives(cap, now)).then(|| self.with(State::Frozen, self.at()))
    }

    pub fn thaw(self) -> Option<Word> {
        (self.state() == State::Frozen).then(|| self.with(State::Alive, self.at()))
    }

    /// Returns the word of an expired session; `None` before its deadline. Any process that needs to know may take this
    /// step, and all then agree. The slot is kept for `kept` from the deadline on: so the word still tells when the
    /// session's time ended.
    pub fn expire(self, cap: u64, now: u64, kept: u64) -> Option<Word> {
        (matches!(self.state(), State::Alive | State::Frozen) && !self.lives(cap, now))
            .then(|| self.with(State::Dead, self.at().min(cap).saturating_add(kept)))
    }

    /// Returns the word of a session that ends before its deadline. `gone`: no row of the session is left.
    pub fn end(self, gone: bool, now: u64, kept: u64) -> Option<Word> {
        match self.state() {
            State::Alive | State::Frozen => {
                Some(self.with(if gone { State::Gone } else { State::Dead }, now.saturating_add(kept)))
            }
            State::Dead if gone => self.bury(),
            _ => None,
        }
    }

    /// Returns the word of a session that only the transaction that opened it has ever seen. To any other call that
    /// session is unknown.
    pub fn erase(self) -> Option<Word> {
        self.end(true, 0, 0)
    }

    pub fn is_erased(self) -> bool {
        self.state() == State::Gone && self.at() == 0
    }

    pub fn bury(self) -> Option<Word> {
        (self.state() == State::Dead).then(|| self.with(State::Gone, self.at()))
    }

    /// Returns the word after a pause of the whole machine that began at `from`. No client could send a heartbeat
    /// during the pause.
    pub fn postpone(self, cap: u64, from: u64, gap: u64) -> Option<Word> {
        (self.state() == State::Alive && self.lives(cap, from))
            .then(|| self.with(State::Alive, self.at().saturating_add(gap)))
    }

    /// Returns whether a step of the same session may lead to `next`: a dead session stays dead, and no step frees a
    /// slot.
    pub fn may_become(self, next: Word) -> bool {
        let is_past = |word: Word| matches!(word.state(), State::Dead | State::Gone);
        next.count() == self.count() && next.state() != State::Free && (!is_past(self) || is_past(next))
    }

    pub fn reclaimable(self, now: u64) -> bool {
        self.state() == State::Gone && now >= self.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: u64 = 1_000;

    fn new(state: State, at: u64) -> Word {
        Word::of(7, state, at)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Beat,
        Freeze,
        Thaw,
        Expire,
        End(bool),
        Bury,
        Postpone(u64),
        Cap,
    }

    fn steps() -> impl Strategy<Value = Vec<(Step, u64)>> {
        let step = prop_oneof![
            3 => Just(Step::Beat),
            1 => Just(Step::Freeze),
            1 => Just(Step::Thaw),
            1 => Just(Step::Expire),
            1 => any::<bool>().prop_map(Step::End),
            1 => Just(Step::Bury),
            1 => (0..TTL).prop_map(Step::Postpone),
            1 => Just(Step::Cap),
        ];
        prop::collection::vec((step, 0..TTL / 2), 1..40)
    }

    proptest! {
        /// Whatever order the steps come in: a session that is dead stays dead, the deadline of a living one only
        /// grows, and no heartbeat succeeds past the deadline.
        #[test]
        fn dead_is_for_ever(steps in steps()) {
            let (mut now, mut cap) = (10_000, FOREVER);
            let mut word = new(State::Alive, now + TTL);
            for (step, wait) in steps {
                now += wait;
                let before = word;
                let next = match step {
                    Step::Beat => word.beat(cap, now, TTL),
                    Step::Freeze => word.freeze(cap, now),
                    Step::Thaw => word.thaw(),
                    Step::Expire => word.expire(cap, now, TTL),
                    Step::End(gone) => word.end(gone, now, TTL),
                    Step::Bury => word.bury(),
                    Step::Postpone(gap) => word.postpone(cap, now - wait, gap),
                    Step::Cap => { cap = cap.min(now); None }
                };
                if matches!(step, Step::Beat) && next.is_some() {
                    prop_assert!(before.lives(cap, now));
                }
                word = next.unwrap_or(word);
                prop_assert_eq!(word.count(), 7);
                let ended = |w: Word| matches!(w.state(), State::Dead | State::Gone);
                if ended(before) {
                    prop_assert!(ended(word));
                    prop_assert!(!word.lives(cap, now));
                    prop_assert!(before.state() != State::Gone || word == before);
                } else if !ended(word) {
                    prop_assert!(word.at() >= before.at());
                }
            }
        }

        #[test]
        fn packs(at in 0..=FOREVER, state in 0usize..5, count: u8) {
            let state = [State::Free, State::Alive, State::Frozen, State::Dead, State::Gone][state];
            let word = Word::of(count, state, at);
            prop_assert_eq!((word.state(), word.at(), word.count()), (state, at, count));
            prop_assert_eq!(word.free(3).next(State::Alive, at).count(), count.wrapping_add(1));
        }
    }

    #[test]
    fn a_heartbeat_is_late_from_a_third_of_the_ttl_on() {
        let word = new(State::Alive, 10_000 + TTL);
        let late = [10_000, 10_000 + TTL / 3, 10_000 + TTL / 2, 10_000 + TTL].map(|now| word.late(now, TTL));
        assert_eq!(late, [0, 0, TTL / 2 - TTL / 3, TTL - TTL / 3]);
    }

    #[test]
    fn frozen_answers_and_extends_nothing() {
        let word = new(State::Alive, 500).freeze(FOREVER, 100);
        assert_eq!(word, Some(new(State::Frozen, 500)));
        let word = new(State::Frozen, 500);
        assert!(word.lives(FOREVER, 499) && word.beat(FOREVER, 400, TTL).is_none());
        assert_eq!(word.expire(FOREVER, 500, TTL).map(Word::state), Some(State::Dead));
        assert_eq!(word.thaw(), Some(new(State::Alive, 500)));
    }

    #[test]
    fn a_pause_gives_time_to_those_who_lived_when_it_began() {
        let word = new(State::Alive, 500);
        assert_eq!(word.postpone(FOREVER, 499, 7_000), Some(new(State::Alive, 7_500)));
        assert!(word.postpone(FOREVER, 500, 7_000).is_none() && word.postpone(400, 450, 7_000).is_none());
    }

    #[test]
    fn a_tombstone_stays_for_as_long_as_it_is_to_be_kept() {
        let word = new(State::Alive, 500).expire(FOREVER, 500, TTL).and_then(Word::bury);
        assert_eq!(word, Some(new(State::Gone, 1_500)));
        let word = new(State::Gone, 1_500);
        assert!(!word.reclaimable(1_499) && word.reclaimable(1_500));
    }

    /// However late a process finds the session dead, and whether its deadline or its cap ended it.
    #[test]
    fn the_end_of_a_dead_session_is_known() {
        let expired = |cap, kept| new(State::Alive, 500).expire(cap, 9_000, kept);
        for (cap, kept, end) in [(FOREVER, 0, 500), (FOREVER, TTL, 500), (300, TTL, 300)] {
            let word = expired(cap, kept);
            assert_eq!(word.map(|word| word.end_of_time(cap, kept)), Some(end));
            assert_eq!(word.and_then(Word::bury).map(|word| word.end_of_time(cap, kept)), Some(end));
        }
        assert_eq!(new(State::Alive, 500).end(false, 400, TTL).map(|word| word.end_of_time(FOREVER, TTL)), Some(400));
        assert_eq!(new(State::Frozen, 500).end_of_time(300, TTL), 300);
    }
}
