//! A number of a slot. It changes by compare-and-swap, together with a count of the sessions that the slot has had.
//!
//! A slot gets its next session as soon as nothing needs the former one. Meanwhile a process that has checked whose
//! slot it is, and is about to write, may be stopped. So each number that is written after such a check has the count
//! in its low bits. (The word of the slot has a count of its own, see [`super::word`].) The process checks between
//! reading and writing. If the check finds its session, the number that was read is of that session, or of an earlier
//! one. If the slot has another session by the time of the write, the count has changed, and the write fails.
//!
//! The count repeats after 256 sessions of one slot. To go wrong, a process would have to be stopped between two
//! instructions for a multiple of 256 sessions, and find the same value. Nothing here knows PostgreSQL.

use std::sync::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = u8::BITS;

#[repr(transparent)]
#[derive(Default)]
pub struct Counted(AtomicU64);

fn value(raw: u64) -> u64 {
    raw >> COUNT_BITS
}

impl Counted {
    pub const fn new(first: u64) -> Counted {
        Counted(AtomicU64::new(first << COUNT_BITS))
    }

    /// Gives the number its first value, of 56 bits, for the slot's next session. Returns the former session's value.
    pub fn begin(&self, count: u8, first: u64) -> u64 {
        value(self.0.swap(first << COUNT_BITS | u64::from(count), Ordering::AcqRel))
    }

    /// Returns the number of the session that has the slot now.
    pub fn get(&self) -> u64 {
        value(self.0.load(Ordering::Acquire))
    }

    /// Changes the number by `step`, and tries again if another process changes it first. Stops if `step` returns
    /// `None`, or if the slot is another session's. `is_mine` says so, and is called between reading and writing.
    /// Returns the former value if the number was changed.
    pub fn change(&self, is_mine: impl Fn() -> bool, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        loop {
            let read = self.0.load(Ordering::Acquire);
            if !is_mine() {
                return None;
            }
            let next = step(value(read))? << COUNT_BITS | u64::from(read as u8);
            if self.0.compare_exchange(read, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Some(value(read));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A process is stopped after it has seen that the slot is its session's. When it goes on, the slot has another
    /// session, with the same value of the number.
    #[test]
    fn what_was_another_sessions_is_not_written() {
        let number = Counted::default();
        number.begin(1, 7);
        let looks = Cell::new(0);
        let is_mine = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                assert_eq!(number.begin(2, 7), 7);
            }
            looks.get() == 1
        };
        assert_eq!(number.change(is_mine, |_| Some(3)), None);
        assert_eq!((number.get(), looks.get()), (7, 2));
    }

    #[test]
    fn counts_come_round_and_leave_the_value_alone() {
        let number = Counted::default();
        for count in [u8::MAX, 0] {
            number.begin(count, u64::MAX >> COUNT_BITS);
            assert_eq!(number.get(), u64::MAX >> COUNT_BITS);
            assert_eq!(number.change(|| true, |value| Some(value - 1)), Some(u64::MAX >> COUNT_BITS));
            assert_eq!(number.change(|| true, |_| None), None);
            assert_eq!(number.0.load(Ordering::Relaxed) as u8, count);
        }
    }
}
