//! A watch, and the hint that one may exist; [`super::news`] has their protocol. Nothing here knows PostgreSQL.

use super::counted::Counted;
use crate::base::limits;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The watch of a session. Zero: no table, no news.
#[repr(C)]
pub struct Watch {
    pub(super) table: Counted,
    /// No transaction whose news is still to be taken has a lesser id. Ids are with their epochs.
    first: Counted,
    /// The greatest id of a transaction that had news.
    last: Counted,
    /// Until when no news is taken, so that a horizon that advances in small steps does not wake at each of them.
    rests_until: AtomicU64,
}

impl Watch {
    /// Ends the watch of the slot's former session.
    pub(super) fn begin(&self, count: u8) {
        [&self.table, &self.first, &self.last].iter().for_each(|number| _ = number.begin(count, 0));
        self.rests_until.store(0, Ordering::Relaxed);
    }

    pub(super) fn has_news(&self) -> bool {
        self.first.get() > 0
    }

    pub(super) fn forget(&self, is_mine: impl Fn() -> bool) {
        self.first.change(is_mine, |_| Some(0));
    }

    /// Notes that transactions from `first` to `last` may have news. Returns whether a process that waits must look:
    /// not while earlier news is not readable, since then it looks now and then.
    pub(super) fn add(&self, is_mine: impl Fn() -> bool, first: u64, last: u64) -> bool {
        self.last.change(&is_mine, |known| (known < last).then_some(last));
        // `take` empties `first` before it reads `last`: it sees this id there, or this sees `first` empty.
        fence(Ordering::SeqCst);
        self.first.change(is_mine, |known| (known == 0 || first <= known).then_some(first)).is_some()
    }

    /// Takes the news of the transactions below `open`, the oldest one that is open. Returns whether there was some.
    pub(super) fn take(&self, is_mine: impl Fn() -> bool, open: u64, now: u64) -> bool {
        if now < self.rests_until.load(Ordering::Relaxed)
            || self.first.change(&is_mine, |first| (first > 0 && first < open).then_some(0)).is_none()
        {
            return false;
        }
        fence(Ordering::SeqCst);
        if self.last.get() >= open {
            self.rests_until.store(now + limits::NEWS_APART, Ordering::Relaxed);
            self.first.change(is_mine, |first| (first == 0 || open < first).then_some(open));
        }
        true
    }
}

/// Returns the table of all watches, if a hint that was read knows of one only.
pub(super) fn only_table(read: u64) -> Option<u32> {
    Some((read >> u32::BITS) as u32).filter(|table| *table != 0)
}

/// Whether a watch may exist: the low bit. The other low bits are a version. The high half is the table, if all watches
/// since the hint was clear are of one, or zero.
#[repr(transparent)]
pub struct Hint(AtomicU64);

impl Hint {
    pub(super) fn set(&self, table: u32) {
        let next = |word: u64| {
            let is_one = word & 1 == 0 || only_table(word) == Some(table);
            Some(u64::from(if is_one { table } else { 0 }) << u32::BITS | u64::from((word as u32).wrapping_add(2) | 1))
        };
        self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, next).ok();
    }

    /// Returns what `clear` needs; `None` if no watch exists.
    pub(super) fn read(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|word| word & 1 != 0)
    }

    /// Clears the hint, unless it has been set since it was read.
    pub(super) fn clear(&self, read: u64) {
        self.0.compare_exchange(read, read & !1, Ordering::AcqRel, Ordering::Relaxed).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn watch() -> Watch {
        Watch {
            table: Counted::default(),
            first: Counted::default(),
            last: Counted::default(),
            rests_until: AtomicU64::new(0),
        }
    }

    /// Runs `other` before each step of `one` in turn. News of 30 must be there afterwards, since it is not readable
    /// for either.
    fn cross(one: impl Fn(&Watch, &dyn Fn() -> bool) -> bool, other: impl Fn(&Watch) -> bool) {
        for at in 0..9 {
            let (watch, steps) = (watch(), Cell::new(0));
            watch.add(|| true, 10, 10);
            let is_mine = || {
                if steps.replace(steps.get() + 1) == at {
                    other(&watch);
                }
                true
            };
            one(&watch, &is_mine);
            if steps.get() <= at {
                other(&watch);
            }
            assert!(watch.take(|| true, 99, u64::MAX), "at step {at}");
        }
    }

    #[test]
    fn no_news_is_lost_between_two_processes() {
        let add = |watch: &Watch, is_mine: &dyn Fn() -> bool| watch.add(is_mine, 30, 30);
        let take = |watch: &Watch, is_mine: &dyn Fn() -> bool| watch.take(is_mine, 11, 0);
        cross(add, |watch| take(watch, &|| true));
        cross(take, |watch| add(watch, &|| true));
    }

    #[test]
    fn later_news_does_not_hold_earlier_news_back() {
        let watch = watch();
        let take = |open, now| watch.take(|| true, open, now);
        assert!(!take(9, 0));
        assert_eq!([7, 5, 30, 5, 8].map(|xid| watch.add(|| true, xid, xid)), [true, true, false, true, false]);
        // The oldest open transaction is 5, then 6; what has news between 6 and 30 is not known.
        assert_eq!([5, 6].map(|open| take(open, 0)), [false, true]);
        assert_eq!([0, limits::NEWS_APART].map(|now| take(9, now)), [false, true]);
        assert!(!take(9, u64::MAX) && watch.has_news());
        assert!(take(31, u64::MAX) && !watch.has_news() && !take(99, u64::MAX));
        watch.add(|| true, 40, 40);
        watch.forget(|| true);
        assert!(!take(99, u64::MAX));
    }

    #[test]
    fn a_hint_that_was_set_since_is_not_cleared() {
        let hint = Hint(AtomicU64::new(0));
        assert_eq!(hint.read(), None);
        hint.set(7);
        let read = hint.read().unwrap_or(0);
        hint.set(7);
        hint.clear(read);
        assert!(hint.read().is_some_and(|now| now != read));
        hint.clear(hint.read().unwrap_or(0));
        assert_eq!(hint.read(), None);
        // Another process cleared and a third one set it again meanwhile.
        hint.set(7);
        hint.clear(read);
        assert!(hint.read().is_some());
    }

    #[test]
    fn a_hint_knows_the_table_if_it_is_one() {
        let hint = Hint(AtomicU64::new(u64::from(u32::MAX) - 1));
        let set = |table| {
            hint.set(table);
            hint.read().and_then(only_table)
        };
        assert_eq!([7, 7, u32::MAX, 7].map(set), [Some(7), Some(7), None, None]);
        hint.clear(hint.read().unwrap_or(0));
        assert_eq!([9, 7].map(set), [Some(9), None]);
    }
}
