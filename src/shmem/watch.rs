//! A watch, and the hint that one may exist; [`super::news`] has their protocol. Nothing here knows PostgreSQL.

use super::counted::Counted;
use std::sync::atomic::{AtomicU64, Ordering};

/// The watch of a session. Zero: no table, no news.
#[repr(C)]
pub struct Watch {
    pub(super) table: Counted,
    /// The greatest id, with its epoch, of a transaction that has news.
    pub(super) news: Counted,
}

/// Whether a watch may exist: the low bit. The other bits are a version.
#[repr(transparent)]
pub struct Hint(AtomicU64);

impl Hint {
    pub(super) fn set(&self) {
        self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| Some(word.wrapping_add(2) | 1)).ok();
    }

    /// Returns what `clear` needs; `None` if no watch exists.
    pub(super) fn read(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|word| word & 1 != 0)
    }

    pub(super) fn clear(&self, read: u64) {
        self.0.compare_exchange(read, read & !1, Ordering::AcqRel, Ordering::Relaxed).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_was_set_since_is_not_cleared() {
        let hint = Hint(AtomicU64::new(0));
        assert_eq!(hint.read(), None);
        hint.set();
        let read = hint.read().unwrap_or(0);
        hint.set();
        hint.clear(read);
        assert!(hint.read().is_some_and(|now| now != read));
        hint.clear(hint.read().unwrap_or(0));
        assert_eq!(hint.read(), None);
        // Another process cleared and a third one set it again meanwhile.
        hint.set();
        hint.clear(read);
        assert!(hint.read().is_some());
    }
}
