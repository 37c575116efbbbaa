//! Surveyed: semaphores whose permits all have a row and are held by sessions with a slot, as a count has found.
//!
//! That tells more than which sessions hold them now. Permits go to sessions that have slots, and a slot stays as long
//! as its session has rows. So from then on a permit is free only where its row says so, or where a dead session still
//! has a row: as long as no row of a permit is removed. Rows are removed once they have been free for a while, or with
//! their slots. **A transaction that removes some counts that** after they are gone for itself, and before its end: a
//! count of permits that begins later finds them gone, or being removed, and one that began earlier counts under the
//! former number.
//!
//! A semaphore is known by a hash of all that makes it what it was, in a table in which a newer one pushes out an older
//! one. The hash begins with the random name of this start of shared memory, so that no user can choose two names that
//! have the same one.

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

    /// This transaction has removed rows of permits.
    pub fn removed_permits(&self, home: Home) {
        self.removals(home).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns what a semaphore is known by, before its permits are looked at.
    pub fn semaphore(&self, home: Home, resource: &str, slots: i32) -> Known {
        let mut hasher = DefaultHasher::new();
        let removals = self.removals(home).load(Ordering::Acquire);
        (self.boot_id(), home.database, home.table, removals, slots, resource).hash(&mut hasher);
        // Zero is a place that is free.
        Known(hasher.finish() | 1)
    }

    pub fn is_surveyed(&self, known: Known) -> bool {
        self.place_of(known).load(Ordering::Acquire) == known.0
    }

    /// A count has found that each permit is held.
    pub fn surveyed(&self, known: Known) {
        self.place_of(known).store(known.0, Ordering::Release);
    }

    fn place_of(&self, known: Known) -> &AtomicU64 {
        &self.surveyed.semaphores[(known.0 >> 1) as usize % SEMAPHORES]
    }
}
