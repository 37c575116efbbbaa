//! A number of a slot, which changes by compare-and-swap together with a count of the sessions that the slot has had.
//!
//! A slot has its next session as soon as nothing needs the former. A process may be stopped meanwhile that has looked
//! whose slot it is, and is about to write. So each number that is written after such a look has the count in its low
//! bits (the word of the slot has a count of its own, see [`super::word`]). The look lies between reading and writing.
//! If the slot still has the session, the number that was read is of that session, or of one before; if the slot has
//! another session by the time of the write, the count has changed, and the write fails.
//!
//! Counts come round after 256 sessions of one slot: a process would have to be stopped between two instructions for
//! exactly so many, or a multiple, with the same value at the end. Nothing here knows PostgreSQL.

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

    /// Gives the number its first value for the slot's next session, of 56 bits. Returns the former session's.
    pub fn begin(&self, count: u8, first: u64) -> u64 {
        value(self.0.swap(first << COUNT_BITS | u64::from(count), Ordering::AcqRel))
    }

    /// Returns the number of the session that has the slot now.
    pub fn get(&self) -> u64 {
        value(self.0.load(Ordering::Acquire))
    }

    /// Changes the number by `step` until that holds, `step` has nothing to do, or the slot is another session's:
    /// `is_mine` tells, asked between reading and writing. Returns what the number was before, if it was changed.
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

    /// A process is stopped after it has seen that the slot is its session's, and goes on when another session has it,
    /// for which the number is what it was.
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
