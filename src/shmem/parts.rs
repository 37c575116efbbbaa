//! The parts of shared memory, as they lie there: what is plain data, for the files that work with it. All are valid
//! when all their bytes are zero. Slots, blocks of them, databases and the ring have files of their own.

use super::counted::Counted;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};

/// Partitions of the map, each under a lock of its own.
pub const MAP_PARTITIONS: usize = 16;
/// Lanes with a known floor.
pub const FLOORS: usize = 8_192;
/// Spans of partitions that are known.
pub const SPANS: usize = 4_096;
/// So many partitions are told from each other.
pub const PARTITIONS: usize = 256;
pub const WORDS: usize = PARTITIONS / u64::BITS as usize;
/// Semaphores that are remembered.
pub const SEMAPHORES: usize = 1_024;
/// Databases of the same number share a count of removals.
pub const REMOVALS: usize = 64;

/// The scalars that all processes share.
#[repr(C)]
pub struct Header {
    /// Names this start of shared memory; a session row stores that of its opening.
    pub boot_id: AtomicI64,
    /// Whether this start is that of a restored base backup.
    pub(super) restored: AtomicBool,
    /// End of recovery, zero before a process has seen it.
    pub(super) t0: AtomicU64,
    pub launcher: AtomicPtr<pg_sys::Latch>,
    /// When the launcher has ended; zero while it runs.
    pub(super) stop: AtomicU64,
    /// When the launcher wakes by itself.
    pub launcher_wakes: AtomicU64,
    /// Whether databases wait for a worker while there are as many as may be.
    pub crowded: AtomicBool,
    /// First of the free slots plus one, under Lock::Alloc.
    pub(super) free: AtomicU32,
    /// Slots that have ever been in use, under Lock::Alloc.
    pub(super) used: AtomicU32,
    /// Before that it is of no use to look for slots that may be used again.
    pub(super) reclaim_at: AtomicU64,
    /// The entry at which the next look for one that can be given up begins.
    pub(super) room_hand: AtomicU32,
    /// Until when calls wait for a database to give up its place.
    pub(super) room_wanted: AtomicU64,
    /// Entries of the ring, under Lock::Ring.
    pub(super) ring_len: AtomicU32,
    /// Turns of floors so far.
    pub(super) turns: AtomicU64,
    /// Whether the launcher has heard that confirmations are made.
    pub(super) confirming: AtomicBool,
    /// When the last acknowledged confirmation began; zero before the first.
    pub(super) confirmed: AtomicU64,
}

/// A session and its database, as the map knows it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    pub(super) uuid: [u8; 16],
    pub(super) database: u32,
    pub(super) table: u32,
}

/// Which slot a session has.
#[repr(C)]
pub struct MapEntry {
    pub(super) key: Key,
    pub(super) slot: u32,
}

/// A prepared transaction: database and xid in one number; zero is none.
#[repr(transparent)]
pub struct Pending(pub(super) AtomicU64);

/// A part of a table's key.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Zero in an entry that is free.
    pub database: u32,
    /// Oid of a table of this extension, which a new CREATE EXTENSION changes.
    pub table: u32,
    pub queue: i32,
    pub partition: i32,
}

/// Below which place of a lane there is nothing (see [`super::floors`]).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Floor {
    pub(super) turn: u64,
    /// The turn in which something became free that the floor is not above.
    pub(super) stirred: u64,
    pub(super) at: i64,
    pub(super) lane: Lane,
    /// The newer one first.
    pub(super) lowered: [Lowered; 2],
}

/// The lowest place that a lane has been lowered to after a turn.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lowered {
    pub(super) since: u64,
    pub(super) to: i64,
}

/// 64 partitions of a queue, from `number` times 64 on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Span {
    pub(super) turn: u64,
    pub(super) may: u64,
    pub(super) due: i64,
    /// Zero in an entry that is free.
    pub(super) database: u32,
    pub(super) queue: i32,
    pub(super) number: i32,
}

/// Of a session: the bits of queues, and when something becomes due in one of them, zero for never.
#[repr(C)]
pub struct Hunger {
    pub(super) bits: Counted,
    pub(super) queue: Counted,
    pub(super) due: Counted,
    /// Calls that sleep in session_wait.
    pub(super) waiting: Counted,
    /// The bits of queues for which it has been woken, and has not looked since.
    pub(super) woken: Counted,
    /// Not counted: one that a stopped process notes for the slot's next session wakes that in vain, at worst.
    pub(super) partitions: [AtomicU64; WORDS],
}

/// What is known of semaphores (see [`super::surveyed`]).
#[repr(C)]
pub struct Surveyed {
    pub(super) removals: [AtomicU64; REMOVALS],
    pub(super) semaphores: [AtomicU64; SEMAPHORES],
}
