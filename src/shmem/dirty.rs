//! The dirty ring: resources that must be judged again. A transaction that changed them has ended, or what stood in the
//! way of a hand-over may be gone. Here are also the prepared transactions whose end is watched for, as PostgreSQL
//! calls no callback when they end.
//!
//! No process waits for the ring, and no work is lost: when the ring is full, the database is rescanned. An entry to be
//! retried later has the time of its retry. If retries alone fill the ring, the rescan is retried later. A resource has
//! one entry however often it is posted, and one for each slot that listeners must be told of (see
//! [`ring`](super::ring)).

use super::databases::{Database, RESCAN};
use super::parts::Pending;
use super::ring::{Entry, Ring, chains};
use super::shared::{Lock, Shared};
use crate::base::limits;
use std::sync::atomic::Ordering;

/// A dirty resource, taken out of the ring.
#[derive(Clone, Debug)]
pub struct Dirty {
    pub resource: String,
    /// The slot whose owner changed, so that listeners are told.
    pub changed: Option<i32>,
    pub backoff_ms: u32,
    /// Whether it is a queue of work items that listeners must be told of.
    pub items: bool,
}

const ITEMS: i32 = -2;

impl Shared {
    /// Posts a resource to be judged at once.
    pub fn post(&self, database: &Database, resource: &str, changed: Option<i32>) {
        if self.push(database, resource, changed, 0, 0).is_none() {
            database.flag(RESCAN);
        }
    }

    /// Posts a queue of work items, so that listeners are told. This is a hint: if the ring has no room the news is
    /// dropped.
    pub fn post_items(&self, database: &Database, queue: &str) {
        self.push(database, queue, Some(ITEMS), 0, 0);
    }

    /// Posts a resource that could not be judged, to be retried after twice the last wait. Returns whether there was
    /// room.
    pub fn post_retry(&self, database: &Database, dirty: &Dirty, now: u64) -> bool {
        let backoff_ms = (dirty.backoff_ms * 2).clamp(limits::FIRST_RETRY_MS, limits::LAST_RETRY_MS);
        let due = now + u64::from(backoff_ms) * 1_000;
        self.push(database, &dirty.resource, dirty.changed, due, backoff_ms).is_some()
    }

    /// Posts a resource that a transaction could not give to a session. It is retried soon, unless a retry is due
    /// already. Returns whether the entry is new or due sooner.
    pub fn post_in_vain(&self, database: &Database, resource: &str, now: u64) -> bool {
        let due = now + u64::from(limits::FIRST_RETRY_MS) * 1_000;
        self.push(database, resource, None, due, limits::FIRST_RETRY_MS).unwrap_or_else(|| {
            database.flag_at(due);
            true
        })
    }

    /// Posts a resource to be judged at a time.
    pub fn post_at(&self, database: &Database, resource: &str, at: u64) {
        if self.push(database, resource, None, at, 0).is_none() {
            database.flag_at(at);
        }
    }

    /// Returns whether the entry is new, or sooner than the one before; `None` if the ring has no room.
    fn push(
        &self,
        database: &Database,
        resource: &str,
        changed: Option<i32>,
        due: u64,
        backoff_ms: u32,
    ) -> Option<bool> {
        let database = database.oid.load(Ordering::Relaxed);
        let entry = Entry::new(database, resource, changed.unwrap_or(-1), due, backoff_ms);
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

    pub(super) fn drop_dirty(&self, database: u32) {
        let _held = self.lock(Lock::Ring, true);
        // SAFETY: under the lock
        unsafe { self.ring() }.take(usize::MAX, |entry| entry.database == database);
    }

    /// Watches for the end of a prepared transaction. If no entry is free, the database is looked through as after a
    /// start.
    pub fn watch_prepared(&self, database: &Database, xid: u32) {
        let value = u64::from(database.oid.load(Ordering::Relaxed)) << 32 | u64::from(xid);
        if self.pending.iter().any(|known| known.0.load(Ordering::Relaxed) == value) {
            return;
        }
        let free = |place: &Pending| place.0.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !self.pending.iter().any(free) {
            database.flag(super::databases::BOOT);
            self.wake_launcher();
        }
    }

    /// Returns whether the end of any prepared transaction of a database is watched for.
    pub fn watches_prepared(&self, database: &Database) -> bool {
        let oid = u64::from(database.oid.load(Ordering::Relaxed));
        self.pending.iter().any(|known| known.0.load(Ordering::Acquire) >> 32 == oid)
    }

    /// Forgets the prepared transactions that have ended. Returns whether any is left.
    pub fn each_ended_prepared(&self, ended: impl Fn(u32) -> bool, mut visit: impl FnMut(u32)) -> bool {
        let mut left = false;
        for place in self.pending {
            let value = place.0.load(Ordering::Acquire);
            if value == 0 {
                continue;
            }
            let (database, xid) = ((value >> 32) as u32, value as u32);
            if ended(xid) {
                place.0.store(0, Ordering::Release);
                visit(database);
            } else {
                left = true;
            }
        }
        left
    }
}
