//! What listeners and the log are told of a database: whether a listener has asked for it, and which ends of sessions
//! the log has yet to tell of.

use super::databases::Database;
use crate::base::limits;
use crate::pg::clock;
use std::sync::atomic::Ordering;

impl Database {
    pub(super) fn is_told_nothing(&self) {
        self.listened_until.store(0, Ordering::Relaxed);
        self.ends_told.store(0, Ordering::Relaxed);
        self.ends.iter().for_each(|ends| ends.store(0, Ordering::Relaxed));
    }

    /// Counts ended sessions of a kind for the log.
    pub fn count_ends(&self, kind: usize, count: u32) {
        self.ends[kind].fetch_add(count, Ordering::Relaxed);
    }

    fn has_ends_to_tell(&self) -> bool {
        self.ends.iter().any(|ends| ends.load(Ordering::Relaxed) != 0)
    }

    /// Returns when the log may tell of the ended sessions that were counted after its last line; `None` if there are
    /// none. The first line of all is left to the process that counts.
    pub fn ends_due(&self) -> Option<u64> {
        let told = self.ends_told.load(Ordering::Relaxed);
        (told != 0 && self.has_ends_to_tell()).then(|| told + limits::TELL_OF_ENDS_EVERY)
    }

    /// Returns how many ended sessions of each kind the log must tell of now; none if it has told of some just before.
    pub fn ends_to_tell(&self, now: u64) -> [u32; 2] {
        let told = self.ends_told.load(Ordering::Relaxed);
        let is_time = self.has_ends_to_tell() && (told == 0 || now >= told + limits::TELL_OF_ENDS_EVERY);
        if !is_time || self.ends_told.compare_exchange(told, now, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return [0; 2];
        }
        [0, 1].map(|kind: usize| self.ends[kind].swap(0, Ordering::AcqRel))
    }

    /// Notes that a listener asks to be notified until `until`.
    pub fn listen_until(&self, until: u64) {
        self.listened_until.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns whether a listener has asked to be notified.
    pub fn is_listened_to(&self) -> bool {
        clock::now() < self.listened_until.load(Ordering::Acquire)
    }
}
