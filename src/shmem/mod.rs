//! Liveness: the only shared memory. Which session is alive, until when, and what the worker has to look at. All of it
//! may be lost with the server: rows say what is owned, and a session that was alive stays so for one TTL after a
//! restart (see [`slots`]), or for what it had left at an orderly stop (see [`left`]).
//!
//! # Who may touch what
//!
//! * A **slot** (one session, 64 bytes) is a set of atomics. Its [`word`] changes by compare-and-swap only, and holds
//!   the whole decision whether the session lives; that is why a heartbeat takes no lock. The other fields are written
//!   before the slot gets a living word and do not change until it is free, save some numbers, each of which changes by
//!   itself: the revision, the cap, what the session waits for, what is unproven of it, and the backend that it is
//!   attached to.
//! * **Reuse.** A slot is free for the next session as soon as nothing needs it (see [`slots`]), while processes may
//!   still refer to it for the former. To write, a process reads the word or the number, compares the session's uuid,
//!   and only then swaps. Word and numbers contain a count of the slot's sessions, so that the swap fails if the slot
//!   has changed hands since the read (see [`counted`]). To read, a process reads, and compares the uuid after that
//!   ([`Shared::is_still`](slots)). Until its slot is needed an ended session leaves a word there: a client is told
//!   that its session has ended, and not that there is none.
//! * Which slots are due is found by the words of **blocks** of them (see [`block`]), which heartbeats leave alone.
//! * **Uuid to slot** is a partitioned hash table of PostgreSQL's, each partition under its own LWLock ([`Lock::Map`]).
//!   Reclaiming a slot and entering one happen under the partition's exclusive lock, so there is never a slot without
//!   its entry.
//! * **Free slots** and the table of databases are under [`Lock::Alloc`], the **dirty ring** under [`Lock::Ring`], the
//!   **floors** of queues of work items, and their **spans**, under [`Lock::Floors`].
//! * No two of these locks are held together, and none over anything that can raise: no allocation by PostgreSQL, no
//!   catalog.
//!
//! Latches of the launcher and of database workers are kept as pointers into PostgreSQL's array of processes. A stale
//! one wakes a process that looks around and sleeps on, which latches allow for.

pub mod attach;
mod block;
pub mod confirm;
mod counted;
pub mod databases;
pub mod dirty;
pub mod floors;
pub mod hunger;
mod left;
pub mod map;
pub mod pace;
pub mod places;
#[cfg(feature = "pg_test")]
#[path = "../../pg_test/reuse.rs"]
mod reuse;
mod ring;
mod room;
pub mod slots;
pub mod spans;
pub mod stand_in;
pub mod standing;
pub mod surveyed;
pub mod wait;
pub mod word;

use crate::base::error::{Error, Result};
use crate::base::{limits, settings};
use crate::pg::version;
use block::Block;
use counted::Counted;
use databases::Database;
use dirty::Pending;
use floors::{FLOORS, Floor};
use hunger::Hunger;
use left::Left;
use map::MapEntry;
use pgrx::pg_sys;
use ring::Entry;
use slots::Slot;
use spans::{SPANS, Span};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use surveyed::Surveyed;

const TRANCHE: &CStr = c"eskit_lease";
const MAP_PARTITIONS: usize = 16;

/// The scalars that all processes share.
#[repr(C)]
pub struct Header {
    /// Names this start of shared memory; a session row stores that of its opening.
    pub boot_id: AtomicI64,
    /// Whether this start is that of a restored base backup.
    restored: AtomicBool,
    /// End of recovery, zero before anybody has seen it.
    t0: AtomicU64,
    pub launcher: AtomicPtr<pg_sys::Latch>,
    /// When the launcher has ended; zero while it runs.
    stop: AtomicU64,
    /// When the launcher wakes by itself.
    pub launcher_wakes: AtomicU64,
    /// Whether databases wait for a worker while there are as many as may be.
    pub crowded: AtomicBool,
    /// First of the free slots plus one, under Lock::Alloc.
    free: AtomicU32,
    /// Slots that have ever been in use, under Lock::Alloc.
    used: AtomicU32,
    /// Before that it is of no use to look for slots that may be used again.
    reclaim_at: AtomicU64,
    /// The entry at which the next look for one that can be given up begins.
    room_hand: AtomicU32,
    /// Until when calls wait for a database to give up its place.
    room_wanted: AtomicU64,
    /// Entries of the ring, under Lock::Ring.
    ring_len: AtomicU32,
    /// Turns of floors so far.
    turns: AtomicU64,
    /// Whether the launcher has heard that there are to be confirmations.
    confirming: AtomicBool,
    /// When the last acknowledged confirmation began; zero before the first.
    confirmed: AtomicU64,
}

/// Where the parts of shared memory are, in this process.
pub struct Shared {
    pub header: &'static Header,
    slots: &'static [Slot],
    blocks: &'static [Block],
    waits: *mut pg_sys::ConditionVariable,
    map: *mut pg_sys::HTAB,
    pub databases: &'static [Database],
    ring: *mut Entry,
    ring_heads: *mut u32,
    ring_size: usize,
    pending: &'static [Pending],
    floors: *mut Floor,
    spans: *mut Span,
    /// Of each session, in which queues it has found less than it asked for, and until when (see [`hunger`]).
    hunger: &'static [Hunger],
    /// Of each block of slots, how many of these are hungry.
    hungry: &'static [AtomicU32],
    /// Of each session, when it was last granted something that nobody else is known to know of (see [`confirm`]).
    unproven: &'static [Counted],
    /// Of each session, the process id of the backend that it is attached to, zero without one.
    attached: &'static [Counted],
    surveyed: &'static Surveyed,
    locks: *mut pg_sys::LWLockPadded,
    /// What sessions of the last start have left. In memory of the postmaster's, which its children inherit.
    left: Left,
}

/// Set by the postmaster and inherited; null where it was not this library that was preloaded.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Shared memory, or the error that this library has not made it.
pub fn shared() -> Result<&'static Shared> {
    // SAFETY: null, or leaked by startup() and valid for the life of the process
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }.ok_or_else(|| {
        if version::another_is_preloaded() { Error::AnotherPreloaded } else { Error::NotPreloaded }.into()
    })
}

impl Shared {
    /// End of recovery in this start of shared memory: what old sessions' time to live is counted from. It never moves.
    pub fn t0(&self) -> u64 {
        let seen = self.header.t0.load(Ordering::Acquire);
        // SAFETY: no preconditions once a process is attached to shared memory
        if seen != 0 || unsafe { pg_sys::RecoveryInProgress() } {
            return seen;
        }
        match self.header.t0.compare_exchange(0, crate::pg::clock::now(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.header.t0.load(Ordering::Acquire),
            Err(seen) => seen,
        }
    }

    pub fn boot_id(&self) -> i64 {
        self.header.boot_id.load(Ordering::Relaxed)
    }

    /// Whether the server was started from a base backup, and not from a data directory of its own.
    pub fn is_restored(&self) -> bool {
        self.header.restored.load(Ordering::Relaxed)
    }

    /// A time that a row has kept, by the clock of shared memory. One of an earlier start of it means `span_ms` after
    /// this one: nobody could do anything about it while the server was down.
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

    /// Something becomes due in a database at `at`, which whoever looks from now on sees: wakes whoever would sleep
    /// past it.
    pub fn anticipate(&self, database: u32, at: u64) {
        if at.saturating_sub(limits::WORKER_AHEAD) < self.header.launcher_wakes.load(Ordering::Acquire) {
            self.wake_launcher();
        }
        if at < crate::pg::clock::now() + limits::WORKER_LINGER
            && let Some(known) = self.known_database(database)
        {
            set_latch(&known.worker);
        }
    }
}

pub fn set_latch(latch: &AtomicPtr<pg_sys::Latch>) {
    let latch = latch.load(Ordering::Acquire);
    if !latch.is_null() {
        // SAFETY: a latch of PostgreSQL's array of processes, which lives as long as shared memory
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// The latch of this process, in shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: MyProc is set in every process that is attached to shared memory
    unsafe { &raw mut (*pg_sys::MyProc).procLatch }
}

#[derive(Clone, Copy)]
pub enum Lock {
    Alloc,
    Ring,
    Floors,
    /// The partition of a hash value.
    Map(u32),
}

/// Held until dropped. If PostgreSQL raises meanwhile it has let go of all LWLocks before this is dropped.
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
        // SAFETY: the tranche has 3 + MAP_PARTITIONS locks
        unsafe {
            let lock = &raw mut (*self.locks.add(index)).lock;
            pg_sys::LWLockAcquire(lock, mode);
            Held(lock)
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: taken by lock() in this process
            unsafe { pg_sys::LWLockRelease(self.0) };
        }
    }
}

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for shared memory; called while the library is being preloaded.
pub fn install() {
    // SAFETY: the postmaster has one thread, and hooks are chained as every extension does
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

fn count(setting: &pgrx::GucSetting<i32>) -> usize {
    usize::try_from(setting.get()).unwrap_or(0)
}

/// Of databases.
fn entries() -> usize {
    count(&settings::MAX_DATABASES) + places::VISITS
}

fn pending_count() -> usize {
    // SAFETY: a setting that every server has; the text ends in NUL
    let setting =
        unsafe { CStr::from_ptr(pg_sys::GetConfigOption(c"max_prepared_transactions".as_ptr(), false, false)) };
    setting.to_str().ok().and_then(|number| number.parse::<usize>().ok()).unwrap_or(0) * 2 + 1
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: PostgreSQL calls this hook when space may be asked for
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        let (sessions, databases) = (count(&settings::MAX_SESSIONS), entries());
        let blocks = sessions.div_ceil(block::SLOTS);
        let sizes = [
            size_of::<Header>(),
            sessions * size_of::<Slot>(),
            blocks * size_of::<Block>(),
            sessions * size_of::<pg_sys::ConditionVariable>(),
            databases * size_of::<Database>(),
            count(&settings::RING_SIZE) * size_of::<Entry>(),
            ring::chains(count(&settings::RING_SIZE)) * size_of::<u32>(),
            pending_count() * size_of::<Pending>(),
            FLOORS * size_of::<Floor>(),
            SPANS * size_of::<Span>(),
            sessions * size_of::<Hunger>(),
            blocks * size_of::<AtomicU32>(),
            sessions * size_of::<Counted>(),
            sessions * size_of::<Counted>(),
            size_of::<Surveyed>(),
        ];
        for size in sizes {
            pg_sys::RequestAddinShmemSpace(size + 64);
        }
        pg_sys::RequestAddinShmemSpace(pg_sys::hash_estimate_size(sessions as _, size_of::<MapEntry>()));
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), (3 + MAP_PARTITIONS) as std::ffi::c_int);
    }
}

/// A zeroed array of shared memory.
///
/// # Safety
/// Only from the startup hook; T must be valid when all its bytes are zero.
unsafe fn array<T>(name: &CStr, len: usize) -> *mut T {
    let mut found = false;
    // SAFETY: as the caller promises
    unsafe {
        let start: *mut T = pg_sys::ShmemInitStruct(name.as_ptr(), len * size_of::<T>(), &mut found).cast();
        std::ptr::write_bytes(start, 0, len);
        start
    }
}

/// Runs in the postmaster, at its start and after each crash of a backend, before any other process can be attached:
/// there is nobody to lock out.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    let (sessions, ring_size) = (count(&settings::MAX_SESSIONS), count(&settings::RING_SIZE));
    // SAFETY: PostgreSQL calls this hook when shared memory can be made; all parts are valid when zero
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let header: &'static Header = &*array::<Header>(c"eskit_lease", 1);
        let mut boot_id = [0u8; 8];
        if !pg_sys::pg_strong_random(boot_id.as_mut_ptr().cast(), boot_id.len()) {
            boot_id = crate::pg::clock::wall().to_ne_bytes();
        }
        header.boot_id.store(i64::from_ne_bytes(boot_id), Ordering::Relaxed);
        // In the data directory, which the postmaster is in. Recovery takes it away, and has not begun yet.
        header.restored.store(std::path::Path::new("backup_label").exists(), Ordering::Relaxed);
        let waits = array::<pg_sys::ConditionVariable>(c"eskit_lease waits", sessions);
        for i in 0..sessions {
            pg_sys::ConditionVariableInit(waits.add(i));
        }
        let (blocks, databases) = (sessions.div_ceil(block::SLOTS), entries());
        let shared = Shared {
            header,
            slots: std::slice::from_raw_parts(array::<Slot>(c"eskit_lease slots", sessions), sessions),
            blocks: std::slice::from_raw_parts(array(c"eskit_lease blocks", blocks), blocks),
            waits,
            map: map::init_map(sessions),
            databases: std::slice::from_raw_parts(array(c"eskit_lease databases", databases), databases),
            ring: array(c"eskit_lease ring", ring_size),
            ring_heads: array(c"eskit_lease ring chains", ring::chains(ring_size)),
            ring_size,
            pending: std::slice::from_raw_parts(array(c"eskit_lease prepared", pending_count()), pending_count()),
            floors: array(c"eskit_lease floors", FLOORS),
            spans: array(c"eskit_lease spans", SPANS),
            hunger: std::slice::from_raw_parts(array(c"eskit_lease hunger", sessions), sessions),
            hungry: std::slice::from_raw_parts(array(c"eskit_lease hungry", blocks), blocks),
            unproven: std::slice::from_raw_parts(array(c"eskit_lease unproven", sessions), sessions),
            attached: std::slice::from_raw_parts(array(c"eskit_lease attached", sessions), sessions),
            surveyed: &*array::<Surveyed>(c"eskit_lease surveyed", 1),
            locks: pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr()),
            left: left::take(),
        };
        SHARED.store(Box::leak(Box::new(shared)), Ordering::Release);
    }
}
