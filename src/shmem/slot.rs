//! A slot: the part of shared memory that one session has. A reference to a slot names the session, and every use
//! compares it.

use super::counted::Counted;
use super::word::{State, Word};
use crate::pg::catalog::Home;
use pgrx::Uuid;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[repr(C, align(64))]
#[derive(Default)]
pub struct Slot {
    pub(super) word: AtomicU64,
    /// A deadline that heartbeats cannot move: the end of an attachment or of a grace. FOREVER without one.
    pub(super) cap: Counted,
    pub(super) revision: Counted,
    pub(super) uuid: [AtomicU64; 2],
    pub(super) database: AtomicU32,
    /// Oid of the table of sessions; a new CREATE EXTENSION changes it.
    pub(super) table: AtomicU32,
    /// The role to which the session belongs; zero without a session.
    pub(super) role: AtomicU32,
    /// The TTL in milliseconds, and the bits PRIVATE and TOLD.
    pub(super) ttl_ms: AtomicU32,
    /// The transaction that has opened the session; PostgreSQL's frozen id once a call has seen its end. Zero if the
    /// session was opened before this start of shared memory.
    pub(super) opened_by: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// A bit of `ttl_ms`, far above the longest TTL: the session was made for one lease, and ends with it.
pub(super) const PRIVATE: u32 = 1 << 31;

/// Another bit of `ttl_ms`: the log has told that the session has ended.
pub(super) const TOLD: u32 = 1 << 30;
pub(super) const TTL: u32 = !(PRIVATE | TOLD);

/// A slot, and the session that had it when the slot was found. Every use compares again.
#[derive(Clone, Copy, Debug)]
pub struct SlotRef {
    pub(super) index: u32,
    pub(super) session: Uuid,
}

/// Two references are equal if they name the same session: it may have got a slot after it had a
/// [stand-in](super::stand_in).
impl PartialEq for SlotRef {
    fn eq(&self, other: &SlotRef) -> bool {
        self.session == other.session
    }
}

impl SlotRef {
    pub fn session(&self) -> Uuid {
        self.session
    }

    /// Returns the two halves of the session's uuid.
    pub(super) fn halves(&self) -> [u64; 2] {
        let whole = u128::from_be_bytes(*self.session.as_bytes());
        [(whole >> 64) as u64, whole as u64]
    }
}

impl Slot {
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    pub(super) fn cap(&self) -> u64 {
        self.cap.get()
    }

    pub(super) fn ttl(&self) -> u64 {
        u64::from(self.ttl_ms.load(Ordering::Acquire) & TTL) * 1_000
    }

    /// Returns how long the slot is kept after the session has ended.
    pub(super) fn kept(&self) -> u64 {
        if self.opened_by.load(Ordering::Relaxed) == 0 { self.ttl() } else { 0 }
    }

    pub(super) fn session(&self) -> Uuid {
        let [high, low] = [&self.uuid[0], &self.uuid[1]].map(|half| half.load(Ordering::Relaxed));
        Uuid::from_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    pub(super) fn home(&self) -> Home {
        Home { database: self.database.load(Ordering::Relaxed), table: self.table.load(Ordering::Relaxed) }
    }

    /// Changes the word by `step`, and tries again if another process changes it first. Returns the word that then
    /// stands, and whether this process took the step. Returns `None` if the slot is no longer that of `session`.
    pub(super) fn change(&self, session: Uuid, step: impl Fn(Word) -> Option<Word>) -> Option<(Word, bool)> {
        loop {
            let word = self.word();
            if word.state() == State::Free || self.session() != session {
                return None;
            }
            let Some(next) = step(word) else {
                return Some((word, false));
            };
            debug_assert!(word.may_become(next), "{word:?} becomes {next:?}");
            if next == word || self.word.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Some((next, true));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shmem::word::FOREVER;
    use std::cell::Cell;

    fn session(number: u8) -> Uuid {
        Uuid::from_bytes(u128::from(number).to_be_bytes())
    }

    fn enter(slot: &Slot, number: u8) {
        slot.uuid[1].store(number.into(), Ordering::Relaxed);
        slot.word.store(slot.word().next(State::Alive, 500).0, Ordering::Release);
    }

    /// A process is stopped between its look and its write. When it goes on, the slot has its next session, with the
    /// same deadline.
    #[test]
    fn the_word_of_another_session_is_not_written() {
        let (slot, stopped) = (Slot::default(), Cell::new(false));
        enter(&slot, 1);
        let beat = |word: Word| {
            if !stopped.replace(true) {
                slot.word.store(slot.word().free(0).0, Ordering::Release);
                enter(&slot, 2);
            }
            word.beat(FOREVER, 400, 1_000)
        };
        assert!(slot.change(session(1), beat).is_none());
        assert_eq!((slot.session(), slot.word().state(), slot.word().at()), (session(2), State::Alive, 500));
        assert!(slot.change(session(2), beat).is_some());
        assert_eq!(slot.word().at(), 1_400);
    }
}
