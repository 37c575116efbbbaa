//! Surveyed: semaphores in which, by the last count, each permit has a row and a holder with a slot.
//!
//! From that count on a permit can be free in two ways only: its row says so, or its holder is dead and still has a
//! row. The reason: permits go only to sessions that have slots, and a slot stays as long as its session has rows. All
//! this holds as long as no row of a permit is removed. A row is removed once it has been free for a while, or with its
//! permit. **A transaction that removes such rows counts the removal** before its end, after it has deleted the rows. A
//! count of permits that begins later finds the rows gone, or being removed. A count that began earlier stores its
//! result under the former number of removals.
//!
//! A semaphore is known by a hash of everything that its count depends on. The table keeps the newer one of two
//! semaphores that fall on one entry. The hash begins with the random name of this start of shared memory: no user can
//! choose two names with the same hash.

use super::parts::{REMOVALS, SEMAPHORES};
use super::shared::Shared;
use crate::pg::catalog::Home;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A semaphore as it was when its count began.
#[derive(Clone, Copy)]
pub struct Known(u64);

impl Shared {
    fn removals(&self, home: Home) -> &AtomicU64 {
        &self.surveyed.removals[home.database as usize % REMOVALS]
    }

    /// Notes that this transaction has removed rows of permits.
    pub fn removed_permits(&self, home: Home) {
        self.removals(home).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the hash by which a semaphore is known. The caller looks at the permits after that.
    pub fn semaphore(&self, home: Home, resource: &str, slots: i32) -> Known {
        let mut hasher = DefaultHasher::new();
        let removals = self.removals(home).load(Ordering::Acquire);
        (self.boot_id(), home.database, home.table, removals, slots, resource).hash(&mut hasher);
        // Zero marks a free entry of the table.
        Known(hasher.finish() | 1)
    }

    pub fn is_surveyed(&self, known: Known) -> bool {
        self.place_of(known).load(Ordering::Acquire) == known.0
    }

    /// Notes that a count has found each permit held.
    pub fn surveyed(&self, known: Known) {
        self.place_of(known).store(known.0, Ordering::Release);
    }

    fn place_of(&self, known: Known) -> &AtomicU64 {
        &self.surveyed.semaphores[(known.0 >> 1) as usize % SEMAPHORES]
    }
}
