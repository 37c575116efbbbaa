//! The dirty ring: resources that must be judged again. A transaction that changed them has ended, or what stood in the
//! way of a hand-over may be gone.
//!
//! No process waits for the ring, and no work is lost: when the ring is full, the database is rescanned. An entry to be
//! retried later has the time of its retry. If retries alone fill the ring, the rescan is retried later. A resource has
//! one entry however often it is posted, and one more for each slot that listeners must be told of (see
//! [`ring`](super::ring)).

use super::databases::{Database, RESCAN};
use super::ring::{Entry, Ring, chains};
use super::shared::{Lock, Shared};
use crate::base::limits;
use crate::pg::clock;
use std::sync::atomic::Ordering;

/// A dirty resource, taken out of the ring.
#[derive(Clone, Debug)]
pub struct Dirty {
    pub resource: String,
    /// The slot whose owner changed, so that listeners are told.
    pub changed: Option<i32>,
    pub backoff_ms: u32,
    /// Since when it is dirty.
    pub since: u64,
    /// Whether it is a queue of work items that listeners must be told of.
    pub items: bool,
}

const ITEMS: i32 = -2;

/// When an entry is due, as in [`Entry`].
struct Due {
    at: u64,
    backoff_ms: u32,
    since: u64,
}

impl Shared {
    /// Posts a resource to be judged at once.
    pub fn post(&self, database: &Database, resource: &str, changed: Option<i32>) {
        self.post_again(database, resource, changed, clock::now());
    }

    /// Posts a resource that is dirty since a time, to be judged at once.
    pub fn post_again(&self, database: &Database, resource: &str, changed: Option<i32>, since: u64) {
        if self.push(database, resource, changed, Due { at: 0, backoff_ms: 0, since }).is_none() {
            database.flag(RESCAN);
        }
    }

    /// Posts a queue of work items, so that listeners are told. This is a hint: if the ring has no room the news is
    /// dropped.
    pub fn post_items(&self, database: &Database, queue: &str) {
        self.push(database, queue, Some(ITEMS), Due { at: 0, backoff_ms: 0, since: clock::now() });
    }

    /// Posts a resource that could not be judged, to be retried after twice the last wait. Returns whether there was
    /// room.
    pub fn post_retry(&self, database: &Database, dirty: &Dirty, now: u64) -> bool {
        let backoff_ms = (dirty.backoff_ms * 2).clamp(limits::FIRST_RETRY_MS, limits::LAST_RETRY_MS);
        let due = Due { at: now + u64::from(backoff_ms) * 1_000, backoff_ms, since: dirty.since };
        self.push(database, &dirty.resource, dirty.changed, due).is_some()
    }

    /// Posts a resource that a transaction could not give to a session. It is retried soon, unless a retry is due
    /// already. Returns whether the entry is new or due sooner.
    pub fn post_in_vain(&self, database: &Database, resource: &str, now: u64) -> bool {
        let due = now + u64::from(limits::FIRST_RETRY_MS) * 1_000;
        self.push(database, resource, None, Due { at: due, backoff_ms: limits::FIRST_RETRY_MS, since: now })
            .unwrap_or_else(|| {
                database.flag_at(due);
                true
            })
    }

    /// Posts a resource to be judged at a time.
    pub fn post_at(&self, database: &Database, resource: &str, at: u64) {
        if self.push(database, resource, None, Due { at, backoff_ms: 0, since: at }).is_none() {
            database.flag_at(at);
        }
    }

    /// Returns whether the entry is new, or due sooner than before; `None` if the ring has no room.
    fn push(&self, database: &Database, resource: &str, changed: Option<i32>, due: Due) -> Option<bool> {
        let database = database.oid.load(Ordering::Relaxed);
        let mut entry = Entry::new(database, resource, changed.unwrap_or(-1), due.at, due.backoff_ms);
        entry.since = due.since;
        let _held = self.lock(Lock::Ring, true);
        // SAFETY: under the lock
        unsafe { self.ring() }.put(entry)
    }

    /// Returns the ring. Only a caller with the exclusive lock may change it.
    ///
    /// # Safety
    /// The caller holds Lock::Ring for as long as it uses the answer.
    unsafe fn ring(&self) -> Ring<'_> {
        // SAFETY: as the caller promises
        unsafe {
            Ring {
                entries: std::slice::from_raw_parts_mut(self.ring, self.ring_size),
                heads: std::slice::from_raw_parts_mut(self.ring_heads, chains(self.ring_size)),
                len: &self.header.ring_len,
            }
        }
    }

    /// Takes up to `most` due resources of a database out of the ring.
    pub fn take_dirty(&self, database: u32, now: u64, most: usize) -> Vec<Dirty> {
        let taken = {
            let _held = self.lock(Lock::Ring, true);
            // SAFETY: under the lock
            unsafe { self.ring() }.take(most, |entry| entry.database == database && entry.due <= now)
        };
        let dirty = |entry: Entry| Dirty {
            resource: String::from_utf8_lossy(entry.name()).into_owned(),
            changed: Some(entry.changed).filter(|slot| *slot >= 0),
            backoff_ms: entry.backoff_ms,
            since: entry.since,
            items: entry.changed == ITEMS,
        };
        taken.into_iter().map(dirty).collect()
    }

    /// Visits each entry's database, and the time at which it is due.
    pub fn each_dirty(&self, mut visit: impl FnMut(u32, u64)) {
        if self.header.ring_len.load(Ordering::Acquire) == 0 {
            return;
        }
        let _held = self.lock(Lock::Ring, false);
        // SAFETY: under the lock; the entries below the length, and they are only read
        let entries =
            unsafe { std::slice::from_raw_parts(self.ring, self.header.ring_len.load(Ordering::Relaxed) as usize) };
        entries.iter().for_each(|entry| visit(entry.database, entry.due));
    }

    /// Returns since when the oldest entry of a database is dirty.
    pub fn dirty_since(&self, database: u32) -> Option<u64> {
        let _held = self.lock(Lock::Ring, true);
        // SAFETY: under the lock
        let ring = unsafe { self.ring() };
        let entries = &ring.entries[..ring.len.load(Ordering::Relaxed) as usize];
        entries.iter().filter(|entry| entry.database == database).map(|entry| entry.since).min()
    }

    pub(super) fn drop_dirty(&self, database: u32) {
        let _held = self.lock(Lock::Ring, true);
        // SAFETY: under the lock
        unsafe { self.ring() }.take(usize::MAX, |entry| entry.database == database);
    }
}
