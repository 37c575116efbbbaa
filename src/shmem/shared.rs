//! Shared memory as a process sees it: where its parts are, its locks, and when it began.

use super::block::Block;
use super::counted::Counted;
use super::databases::Database;
use super::latch::set_latch;
use super::leftover::Left;
use super::parts::{Concerned, Floor, Header, Hunger, MAP_PARTITIONS, Pending, Span, Surveyed};
use super::refusals::Table as Refusals;
use super::ring::Entry;
use super::slot::Slot;
use super::watch::{Hint, Watch};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::{clock, version};
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Where the parts of shared memory are, in this process.
pub struct Shared {
    pub header: &'static Header,
    pub(super) slots: &'static [Slot],
    pub(super) blocks: &'static [Block],
    pub(super) waits: *mut pg_sys::ConditionVariable,
    pub(super) map: *mut pg_sys::HTAB,
    pub databases: &'static [Database],
    pub(super) ring: *mut Entry,
    pub(super) ring_heads: *mut u32,
    pub(super) ring_size: usize,
    pub(super) pending: &'static [Pending],
    pub(super) concerned: &'static [Concerned],
    pub(super) floors: *mut Floor,
    pub(super) spans: *mut Span,
    /// For each session, the queues in which it has found less than it asked for, and when to wake it (see
    /// [`super::hunger`]).
    pub(super) hunger: &'static [Hunger],
    /// For each block of slots, how many of its sessions are hungry.
    pub(super) hungry: &'static [AtomicU32],
    /// For each session, when it was last granted something that is unproven (see [`super::confirm`]).
    pub(super) unproven: &'static [Counted],
    /// For each session, its attachment (see [`super::attach`]); zero without one.
    pub(super) attached: &'static [Counted],
    /// For each session, the latch of the process that waits for it and for others; null without one.
    pub(super) listeners: &'static [AtomicPtr<pg_sys::Latch>],
    /// For each session, its watch; for each block of slots, whether it may have watches (see [`super::news`]).
    pub(super) watches: &'static [Watch],
    pub(super) watched: &'static [Hint],
    pub(super) surveyed: &'static Surveyed,
    pub(super) refusals: Refusals,
    pub(super) locks: *mut pg_sys::LWLockPadded,
    /// The remaining TTL of the last start's sessions. This is in the postmaster's own memory, which its children
    /// inherit.
    pub(super) left: Left,
}

/// Set by the postmaster and inherited; null if another library, or none, was preloaded.
pub(super) static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Returns shared memory, or an error if this library has not made it.
pub fn shared() -> Result<&'static Shared> {
    // SAFETY: null, or leaked by startup() and valid for the life of the process
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }.ok_or_else(|| {
        if version::another_is_preloaded() { Error::AnotherPreloaded } else { Error::NotPreloaded }.into()
    })
}

impl Shared {
    /// Returns the end of recovery in this start of shared memory, from which old sessions' TTLs count. It never moves.
    /// Zero during recovery.
    pub fn t0(&self) -> u64 {
        let seen = self.header.t0.load(Ordering::Acquire);
        // SAFETY: no preconditions once a process is attached to shared memory
        if seen != 0 || unsafe { pg_sys::RecoveryInProgress() } {
            return seen;
        }
        match self.header.t0.compare_exchange(0, clock::now(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.header.t0.load(Ordering::Acquire),
            Err(seen) => seen,
        }
    }

    pub fn boot_id(&self) -> i64 {
        self.header.boot_id.load(Ordering::Relaxed)
    }

    /// Returns whether the server was started from a base backup, and not from a data directory of its own.
    pub fn is_restored(&self) -> bool {
        self.header.restored.load(Ordering::Relaxed)
    }

    /// Returns a time that a row has kept, by the clock of shared memory. A time of an earlier start becomes `span_ms`
    /// after this start: no client could act while the server was down.
    pub fn of_this_start(&self, at: i64, boot_id: i64, span_ms: i32) -> u64 {
        if boot_id == self.boot_id() {
            at.cast_unsigned()
        } else {
            self.t0() + u64::from(span_ms.cast_unsigned()) * 1_000
        }
    }

    pub fn wake_launcher(&self) {
        set_latch(&self.header.launcher);
    }

    /// Wakes the launcher and the database's worker if they would sleep past `at`, when something becomes due there.
    /// Every look from now on finds it.
    pub fn anticipate(&self, database: u32, at: u64) {
        if at.saturating_sub(limits::WORKER_AHEAD) < self.header.launcher_wakes.load(Ordering::Acquire) {
            self.wake_launcher();
        }
        if at < clock::now() + limits::WORKER_LINGER
            && let Some(known) = self.known_database(database)
        {
            set_latch(&known.worker);
        }
    }
}

/// How many locks there are.
pub(super) const LOCKS: usize = 3 + MAP_PARTITIONS;

#[derive(Clone, Copy)]
pub enum Lock {
    Alloc,
    Ring,
    Floors,
    /// The lock of the map's partition to which a hash value belongs.
    Map(u32),
}

thread_local! {
    /// Whether this process holds a lock of shared memory.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// A lock, held until this is dropped. If PostgreSQL raises meanwhile, it releases all LWLocks before this is dropped.
pub struct Held(*mut pg_sys::LWLock);

impl Shared {
    pub fn lock(&self, lock: Lock, exclusive: bool) -> Held {
        let index = match lock {
            Lock::Alloc => 0,
            Lock::Ring => 1,
            Lock::Floors => 2,
            Lock::Map(hash) => 3 + hash as usize % MAP_PARTITIONS,
        };
        let mode = if exclusive { pg_sys::LWLockMode::LW_EXCLUSIVE } else { pg_sys::LWLockMode::LW_SHARED };
        debug_assert!(!HOLDS.replace(true), "two locks of shared memory are never held together");
        // SAFETY: the tranche has as many locks as LOCKS says
        unsafe {
            let lock = &raw mut (*self.locks.add(index)).lock;
            pg_sys::LWLockAcquire(lock, mode);
            Held(lock)
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDS.set(false);
        if !std::thread::panicking() {
            // SAFETY: taken by lock() in this process
            unsafe { pg_sys::LWLockRelease(self.0) };
        }
    }
}
