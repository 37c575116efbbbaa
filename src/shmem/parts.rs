//! The parts of shared memory that are plain data; other files work with them. All are valid when all their bytes are
//! zero. Slots, blocks, databases and the ring have files of their own.

use super::counted::Counted;
use super::counters::AT_COMMIT;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};

/// Partitions of the map, each under a lock of its own.
pub const MAP_PARTITIONS: usize = 16;
/// How many lanes can have a known floor.
pub const FLOORS: usize = 8_192;
/// How many spans of partitions can be known.
pub const SPANS: usize = 4_096;
/// How many partitions a session's hunger tells apart (see [`super::hunger`]).
pub const PARTITIONS: usize = 256;
pub const WORDS: usize = PARTITIONS / u64::BITS as usize;
/// How many sessions all prepared transactions together can note.
pub const CONCERNED: usize = 1_024;
/// How many semaphores can be remembered.
pub const SEMAPHORES: usize = 1_024;
/// How many counts of removals there are. Databases whose oids have the same remainder share one.
pub const REMOVALS: usize = 64;

/// The scalars that all processes share.
#[repr(C)]
pub struct Header {
    /// Names this start of shared memory. A session's row stores the name of the start in which the session was opened.
    pub boot_id: AtomicI64,
    /// Whether the server was started from a base backup.
    pub(super) restored: AtomicBool,
    /// The end of recovery; zero until a process has seen it.
    pub(super) t0: AtomicU64,
    pub launcher: AtomicPtr<pg_sys::Latch>,
    /// When the launcher ended; zero while it runs.
    pub(super) stop: AtomicU64,
    /// When the launcher wakes by itself.
    pub launcher_wakes: AtomicU64,
    /// Whether databases wait for a worker or a visit, so that workers must take turns.
    pub crowded: AtomicBool,
    /// How many databases had work and no worker at the launcher's last turn.
    pub unserved: AtomicU32,
    /// The first free slot plus one, under Lock::Alloc.
    pub(super) free: AtomicU32,
    /// How many slots have ever been in use, under Lock::Alloc.
    pub(super) used: AtomicU32,
    /// Until this time only calls for new sessions look for slots to reclaim.
    pub(super) reclaim_at: AtomicU64,
    /// Where the next search for an entry to give up begins.
    pub(super) room_hand: AtomicU32,
    /// Until this time a call counts as waiting for an entry.
    pub(super) room_wanted: AtomicU64,
    /// How many entries the ring has, under Lock::Ring.
    pub(super) ring_len: AtomicU32,
    /// How many turns of floors have begun.
    pub(super) turns: AtomicU64,
    /// Whether confirmations are made, as the launcher last read the setting.
    pub(super) confirming: AtomicBool,
    /// When the last acknowledged confirmation began; zero before the first.
    pub(super) confirmed: AtomicU64,
}

/// A session and where its rows are, as the map knows it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    pub(super) uuid: [u8; 16],
    pub(super) database: u32,
    pub(super) table: u32,
}

/// An entry of the map: the slot that a session has.
#[repr(C)]
pub struct MapEntry {
    pub(super) key: Key,
    pub(super) slot: u32,
}

/// A prepared transaction: database and xid in one number. Zero marks a free entry (see [`super::prepared`]).
#[repr(C)]
pub struct Pending {
    pub(super) transaction: AtomicU64,
    pub(super) whom: AtomicU32,
    /// What the transaction counts, each with the xid in its high half.
    pub(super) counted: [AtomicU64; AT_COMMIT],
    /// Since when the lease that waits longest for its hand-over has been free.
    pub(super) free_since: AtomicU64,
}

/// A session that the end of a prepared transaction concerns. A zero marks a free entry.
#[repr(C)]
pub struct Concerned {
    pub(super) transaction: AtomicU64,
    pub(super) slot: AtomicU32,
    pub(super) session: [AtomicU64; 2],
}

/// A lane: a range of the key of one table (see [`super::floors`]).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Zero in a free entry.
    pub database: u32,
    /// Oid of a table of this extension; a new CREATE EXTENSION changes it.
    pub table: u32,
    pub queue: i32,
    pub partition: i32,
}

/// The floor of a lane: the place below which nothing is free (see [`super::floors`]).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Floor {
    pub(super) turn: u64,
    /// The turn in which an item that the floor had not passed became free.
    pub(super) stirred: u64,
    pub(super) at: i64,
    pub(super) lane: Lane,
    /// The newer lowering comes first.
    pub(super) lowered: [Lowered; 2],
}

/// The lowest place to which a lane has been lowered since a turn.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lowered {
    pub(super) since: u64,
    pub(super) to: i64,
}

/// A span: 64 partitions of a queue, from `number` times 64 on (see [`super::spans`]).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Span {
    pub(super) turn: u64,
    pub(super) may: u64,
    pub(super) due: i64,
    /// Zero in a free entry.
    pub(super) database: u32,
    pub(super) queue: i32,
    pub(super) number: i32,
}

/// The hunger of a session (see [`super::hunger`]): the bits of queues, one queue, and when something becomes due in
/// it. Zero is never.
#[repr(C)]
pub struct Hunger {
    pub(super) bits: Counted,
    pub(super) queue: Counted,
    pub(super) due: Counted,
    /// How many calls for this session sleep in session_wait.
    pub(super) waiting: Counted,
    /// The bits of queues for which the session has been woken, and has not looked since.
    pub(super) woken: Counted,
    /// The partitions that the session has noted, by their bits. They carry no count of sessions. A stopped process may
    /// set a bit after the slot has its next session; at worst that session is woken in vain.
    pub(super) partitions: [AtomicU64; WORDS],
}

/// What is known of semaphores (see [`super::surveyed`]).
#[repr(C)]
pub struct Surveyed {
    pub(super) removals: [AtomicU64; REMOVALS],
    pub(super) semaphores: [AtomicU64; SEMAPHORES],
}
