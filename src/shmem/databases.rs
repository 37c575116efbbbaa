//! Databases: what shared memory knows of each database that has an entry (see [`super::entries`]).

use super::beginning::Beginning;
use super::counters::{Counter, Counters};
use super::latch::{my_latch, set_latch};
use super::pace::Pace;
use super::waiting::Waiting;
use super::watch::Hint;
use crate::base::limits;
use crate::pg::clock;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The kinds of rows that are kept for a while after their end (see [`crate::ending::retention`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kept {
    Leases,
    Executions,
    DeadItems,
    /// Claims whose last items were finished by several transactions at once: none of these transactions could see that
    /// all items were finished.
    Claims,
    History,
}

/// Values of `kept_since`: rows may be kept since an unknown time; a process is looking for the oldest row.
const UNKNOWN: i64 = i64::MIN;
const LOOKING: i64 = i64::MIN + 1;

/// The worker must rescan the database: judge every resource that is waited for, and not only those in the ring.
pub const RESCAN: u32 = 1;
/// Shared memory does not know the database yet: sessions of earlier starts and prepared transactions must be found.
pub const BOOT: u32 = 2;
/// A prepared transaction has ended, and it is not known which revisions it has changed.
pub const REVISE: u32 = 4;
/// A prepared transaction has ended. PostgreSQL may still be about to release its locks.
pub const PREPARED_ENDED: u32 = 8;

/// When to retry what another transaction was in the way of. Each wait is twice the last one, up to a bound.
#[repr(C)]
pub struct Retry {
    until: AtomicU64,
    wait: AtomicU64,
}

impl Retry {
    pub fn set(&self, blocked: bool, now: u64) {
        let wait = (self.wait.load(Ordering::Relaxed) * 2).clamp(limits::FIRST_BLOCKED, limits::LAST_BLOCKED);
        self.wait.store(if blocked { wait } else { 0 }, Ordering::Relaxed);
        self.until.store(if blocked { now + wait } else { 0 }, Ordering::Relaxed);
    }

    /// Ends the wait: the retry is due now.
    pub fn hurry(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    pub fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.wait.store(0, Ordering::Relaxed);
    }
}

#[repr(C)]
pub struct Database {
    pub oid: AtomicU32,
    pub(super) table: AtomicU32,
    /// The database may give its entry up (see [`super::room`]).
    pub(super) leaving: AtomicBool,
    /// The entry is for a visit, and is no regular entry (see [`super::entries`]).
    pub(super) visited: AtomicBool,
    /// Since when the counters count, in microseconds since 1970.
    pub(super) since: AtomicU64,
    /// Oid of the fence sequence that has been raised above all history in this start of shared memory.
    pub raised: AtomicU32,
    /// Fences below this one are of a former history (see [`crate::lease::refence`]); zero while the mark is not known.
    pub refence: AtomicI64,
    /// The pace of fences, and of the numbers of items, since their sequences were raised.
    pub fences: Pace,
    pub items: Pace,
    /// Queues in which some session has found less than it asked for, by their bits.
    pub(super) hungry: AtomicU32,
    /// The queue of each bit, if sessions have been hungry for only one queue of that bit.
    pub(super) queues: [AtomicI32; u32::BITS as usize],
    /// For each bit, how many sessions have been woken for items of its queues, and have not claimed since.
    pub(super) woken: [AtomicU32; u32::BITS as usize],
    /// Until when the woken sessions have time to claim; zero if none has been woken.
    pub(super) patience: AtomicU64,
    /// A claim of work items under this fence or a later one has a row for as long as it has items. Zero before the
    /// first claim in this start of shared memory.
    pub first_claim: AtomicI64,
    /// Oid of the sequence `position_high` for which the next three fields are valid, in this start of shared memory.
    pub positions_of: AtomicU32,
    /// The number that is added to a transaction's id to make its positions.
    pub position_base: AtomicI64,
    /// The first transaction id for which `position_base` surely holds.
    pub position_since: AtomicI64,
    /// The greatest sum of base and id for which positions may be given.
    pub position_high: AtomicI64,
    flags: AtomicU32,
    pub waiting: Waiting,
    /// Whether sessions of the database may watch a table (see [`super::news`]).
    pub(super) watched: Hint,
    /// How many living sessions had no slot at the last rescan of the database.
    pub without_slot: AtomicU32,
    pub worker: AtomicPtr<pg_sys::Latch>,
    /// The latch of a waiting call that does a run of the worker when it is asked to, if the worker has no process.
    pub helper: AtomicPtr<pg_sys::Latch>,
    /// Whether a waiting call is asked to do a run of the worker.
    pub asked: AtomicBool,
    /// Since when the database has work and no process for its worker; zero if it has one.
    pub unserved_since: AtomicU64,
    /// When the log has last told of ended sessions, and how many of each kind it has yet to tell of.
    pub(super) ends_told: AtomicU64,
    pub(super) ends: [AtomicU32; 2],
    /// Until when listeners have asked to be notified; zero if none has.
    pub(super) listened_until: AtomicU64,
    /// Whether the database's worker stays, beyond `eskit_lease.max_workers`, because it has locks that end with it.
    pub tending: AtomicBool,
    /// Whether the last worker left in order: it had nothing to do, others needed its turn, or it was switched off.
    pub finished: AtomicBool,
    /// When a run of retention last finished. It may have skipped tables that others had locked.
    pub retention_looked: AtomicU64,
    /// Since when the oldest row of each kind is kept, by [`clock::now`]; negative if that is before the boot. Zero if
    /// no row is kept; or one of the constants above.
    kept_since: [AtomicI64; 5],
    /// Where the worker's next run of retention begins with each kind.
    retire_from: [Beginning; 5],
    /// When the worker last finished a run of retention that began at the oldest rows of all.
    pub retired_anew: AtomicU64,
    /// Transactions that have finished items of the kept claims have ids below this; zero when all of them have ended.
    claims_before: AtomicU64,
    /// When to retry dead sessions whose rows other transactions have locked.
    pub blocked: Retry,
    /// When to rescan the database again, if it has more locked resources than the ring has room for.
    look_through: Retry,
    /// When to rescan the database for work for which the ring had no room; zero for never.
    timer: AtomicU64,
    pub counters: Counters,
}

impl Database {
    /// Makes the entry a free one. The caller holds Lock::Alloc.
    pub(super) fn clear(&self) {
        for field in [&self.table, &self.raised, &self.positions_of, &self.flags, &self.without_slot, &self.hungry] {
            field.store(0, Ordering::Relaxed);
        }
        self.waiting.clear();
        self.queues.iter().for_each(|queue| queue.store(0, Ordering::Relaxed));
        self.woken.iter().for_each(|woken| woken.store(0, Ordering::Relaxed));
        self.patience.store(0, Ordering::Relaxed);
        self.worker.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.helper.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
        self.unserved_since.store(0, Ordering::Relaxed);
        self.is_told_nothing();
        self.leaving.store(false, Ordering::Relaxed);
        self.visited.store(false, Ordering::Relaxed);
        self.retention_looked.store(0, Ordering::Relaxed);
        self.claims_before.store(0, Ordering::Relaxed);
        for since in &self.kept_since {
            since.store(0, Ordering::Relaxed);
        }
        self.retire_from.iter().for_each(Beginning::clear);
        self.retired_anew.store(0, Ordering::Relaxed);
        self.first_claim.store(0, Ordering::Relaxed);
        self.refence.store(0, Ordering::Relaxed);
        self.blocked.clear();
        self.look_through.clear();
        self.timer.store(0, Ordering::Relaxed);
        self.counters.clear();
        self.oid.store(0, Ordering::Release);
    }

    /// Returns whether calls wait in the database, its worker has a process, or a rescan is to come.
    pub fn is_busy(&self) -> bool {
        self.waiting.calls() != 0 || !self.worker.load(Ordering::Acquire).is_null() || self.flags_due().is_some()
    }

    /// Returns since when the counters count, in seconds since 1970.
    pub fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed) / 1_000_000
    }

    pub fn add(&self, counter: Counter, by: u64) {
        self.counters.add(counter, by);
    }

    /// Offers this waiting process for a run of the worker, unless another process has offered itself.
    pub fn offer_help(&self) {
        self.helper.compare_exchange(std::ptr::null_mut(), my_latch(), Ordering::AcqRel, Ordering::Relaxed).ok();
    }

    pub fn end_help(&self) {
        self.helper.compare_exchange(my_latch(), std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).ok();
    }

    /// Returns how long the database has had work and no process for its worker.
    pub fn unserved_ms(&self) -> i32 {
        let since = self.unserved_since.load(Ordering::Relaxed);
        if since == 0 { 0 } else { clock::trust_ms(clock::now().saturating_sub(since)) }
    }

    /// Asks a waiting call to do a run of the worker.
    pub fn ask_for_help(&self) {
        self.asked.store(true, Ordering::Release);
        set_latch(&self.helper);
    }

    /// Sets flags, which are due at once. This wakes no process.
    pub fn flag(&self, flags: u32) {
        self.flags.fetch_or(flags, Ordering::AcqRel);
        self.look_through.hurry();
    }

    /// Flags a rescan of the database at `at`.
    pub fn flag_at(&self, at: u64) {
        let sooner = |timer: u64| (timer == 0 || at < timer).then_some(at);
        self.timer.fetch_update(Ordering::AcqRel, Ordering::Relaxed, sooner).ok();
    }

    /// Returns when to wake other sessions for items; `None` if all that were woken have claimed.
    pub fn patience(&self) -> Option<u64> {
        let woken = self.woken.iter().any(|woken| woken.load(Ordering::Acquire) != 0);
        Some(self.patience.load(Ordering::Acquire)).filter(|until| woken && *until != 0)
    }

    /// Returns when to rescan the database; `None` if there is no reason to.
    pub fn flags_due(&self) -> Option<u64> {
        let flags = (self.flags() != 0).then(|| self.look_through.until());
        let timer = Some(self.timer.load(Ordering::Acquire)).filter(|timer| *timer != 0);
        flags.into_iter().chain(timer).min()
    }

    /// Notes that the retention of a visible row begins. (For a claim, it begins once all other transactions that have
    /// finished items of the claim have ended.) Returns whether no other row is kept: then the worker must be told.
    pub fn keep(&self, kind: Kept, now: u64) -> bool {
        self.retire_from[kind as usize].lower_to_transaction();
        if kind == Kept::Claims {
            // SAFETY: reads a number of PostgreSQL's shared memory
            self.claims_before.fetch_max(unsafe { pg_sys::ReadNextFullTransactionId() }.value, Ordering::AcqRel);
        }
        let first = |since: i64| match since {
            0 => Some(now.cast_signed()),
            LOOKING => Some(UNKNOWN),
            _ => None,
        };
        self.kept_since[kind as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, first) == Ok(0)
    }

    /// Notes that there may be rows of any kind, whatever a look has found.
    pub fn may_keep(&self) {
        for since in &self.kept_since {
            since.store(UNKNOWN, Ordering::Release);
        }
        self.retire_from.iter().for_each(Beginning::clear);
        self.retention_looked.store(0, Ordering::Release);
    }

    /// Returns where the worker's next run of retention begins with a kind.
    pub fn retire_from(&self, kind: Kept) -> &Beginning {
        &self.retire_from[kind as usize]
    }

    /// Notes that a kind may have rows that no look has seen yet.
    pub fn are_kept(&self, kind: Kept) {
        self.kept_since[kind as usize].store(UNKNOWN, Ordering::Release);
    }

    /// Begins a look for the oldest row of a kind. The look may miss rows that are kept from now on. Returns whether it
    /// may also miss rows that were kept before.
    pub fn look_for_kept(&self, kind: Kept) -> bool {
        self.kept_since[kind as usize].swap(LOOKING, Ordering::AcqRel);
        kind == Kept::Claims && self.claims_are_being_finished()
    }

    fn claims_are_being_finished(&self) -> bool {
        let before = self.claims_before.load(Ordering::Acquire);
        if before == 0 {
            return false;
        }
        // SAFETY: in a transaction; reads one number of the snapshot
        let open = unsafe {
            let oldest = (*pg_sys::GetLatestSnapshot()).xmin;
            pg_sys::TransactionIdPrecedes(oldest, pg_sys::TransactionId::from(before as u32))
        };
        if !open {
            self.claims_before.compare_exchange(before, 0, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
        open
    }

    /// Ends the look for the oldest row of a kind.
    pub fn found_kept(&self, kind: Kept, oldest: Option<i64>) {
        let found = |since: i64| match oldest {
            None => (since == LOOKING).then_some(0),
            // A zero would say that there is no row.
            Some(0) => Some(-1),
            Some(oldest) => Some(oldest),
        };
        self.kept_since[kind as usize].fetch_update(Ordering::AcqRel, Ordering::Relaxed, found).ok();
    }

    /// Returns since when the oldest row of a kind is kept, if there may be one.
    pub fn kept_since(&self, kind: Kept) -> Option<i64> {
        Some(self.kept_since[kind as usize].load(Ordering::Acquire)).filter(|since| *since != 0)
    }

    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    /// Takes away the flags that are due. The caller does what they ask for.
    pub fn take_flags(&self, now: u64) -> u32 {
        let past = |timer: u64| (timer != 0 && timer <= now).then_some(0);
        let timer = self.timer.fetch_update(Ordering::AcqRel, Ordering::Relaxed, past).map_or(0, |_| RESCAN);
        timer | if self.look_through.until() > now { 0 } else { self.flags.swap(0, Ordering::AcqRel) }
    }

    /// Notes that the rescan of the database has ended. `left`: the ring had no room for all that could not be judged.
    /// Then the database is rescanned later; or at once, if another process has asked for a rescan meanwhile.
    pub fn looked_through(&self, left: bool, now: u64) {
        self.look_through.set(left, now);
        if left && self.flags.fetch_or(RESCAN, Ordering::AcqRel) != 0 {
            self.look_through.hurry();
        }
    }

    /// Flags a later rescan of the database, unless one is due already: a resource could not be judged, and the ring
    /// has no room.
    pub fn look_through_later(&self, now: u64) {
        if self.flags() == 0 {
            self.looked_through(true, now);
        }
    }
}
