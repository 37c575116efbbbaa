//! Lock tags of our own: advisory-type locks under classes that users' advisory locks (classes 1 and 2) cannot name.
//! PostgreSQL releases them at the end of the (sub)transaction, keeps them over PREPARE and restores them after a
//! restart.
//!
//! | guard        | held, until the end of the transaction unless said                                            |
//! |--------------|-----------------------------------------------------------------------------------------------|
//! | `Grantee` (G)| shared by a transaction that grants to the session; exclusively by one that removes the session's last rows |
//! | `Fencer` (S) | shared by a fenced transaction of the session; exclusively by its close, its take-over and bulk releases |
//! | `Fence` (F)  | shared by a fenced transaction; exclusively by one that releases or moves the lease, or gives it a new fence; or for an instant, to see that no fenced transaction is open |
//! | `Seat` (P)   | exclusively by a transaction that gives one session a permit of one semaphore, or makes it a member of one group |
//! | `Stripe` (N) | exclusively, for the time of one call, by a transaction that makes the first row of a slot, a declaration, a queue, a run-once key, the head of a key, or a row that must be the last in its order |
//! | `Taken` (T)  | in joint mode by prepared transactions that took something from the session when it was dead: no restart revives it |
//! | `Promised` (W) | in joint mode by prepared transactions that granted something to the session: it is not vouched for meanwhile |
//! | `Bridge` (B) | exclusively by the worker, beyond its transactions, while the lease of a bridge is good; shared for an instant by a check |
//! | `Raise` (R)  | exclusively, for the time of one call, by a transaction that lifts a sequence above all history, or reserves or raises positions |
//!
//! Joint mode is compatible with itself alone: several transactions may hold a guard in it, and no other mode is
//! granted meanwhile. The key of F is the fence, not the name: a fence belongs to one resource and one session for
//! good. So F can be taken before anything is looked up, and two resources never share an F.

use super::order::{self, Place};
use super::server;
use pgrx::{Uuid, pg_sys};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Guard {
    Grantee(Uuid),
    Fencer(Uuid),
    Fence(i64),
    /// A session and the hash of a name.
    Seat(Uuid, u64),
    Stripe(u16),
    Taken(Uuid),
    Promised(Uuid),
    /// The key of a name, folded like that of a group.
    Bridge(i64),
    Raise,
}

#[derive(Clone, Copy)]
pub enum Mode {
    Shared,
    /// Compatible with itself, and with no other mode.
    Joint,
    Exclusive,
}

/// The first of our classes. pg_locks shows the classes in `objsubid`, and sql/views.sql also names them.
const CLASS: u16 = 4_501;

impl Guard {
    fn tag(self) -> Tag {
        let of_session = |session: Uuid| u128::from_be_bytes(*session.as_bytes()) as u64;
        let (class, key) = match self {
            Guard::Grantee(session) => (CLASS, of_session(session)),
            Guard::Fencer(session) => (CLASS + 1, of_session(session)),
            Guard::Fence(fence) => (CLASS + 2, fence.cast_unsigned()),
            Guard::Stripe(stripe) => (CLASS + 3, u64::from(stripe)),
            Guard::Raise => (CLASS + 4, 0),
            Guard::Seat(session, semaphore) => (CLASS + 5, of_session(session) ^ semaphore),
            Guard::Taken(session) => (CLASS + 6, of_session(session)),
            Guard::Promised(session) => (CLASS + 7, of_session(session)),
            Guard::Bridge(key) => (CLASS + 8, key.cast_unsigned()),
        };
        Tag::new(class, key)
    }

    /// Takes the lock, unless another process is in the way.
    pub fn try_lock(self, mode: Mode) -> bool {
        let had = as_transaction(|| self.tag().acquire(mode, Life::Transaction, false));
        if had && self.is_of_a_call() {
            self.place().into_iter().for_each(order::took);
        }
        had
    }

    /// Takes the lock, waiting under lock_timeout and the deadlock detector.
    pub fn lock(self, mode: Mode) {
        order::waits_for(self.place());
        if !self.is_of_a_call() {
            self.place().into_iter().for_each(order::waits_to_keep);
        }
        as_transaction(|| self.tag().acquire(mode, Life::Transaction, true));
        if self.is_of_a_call() {
            self.place().into_iter().for_each(order::took);
        }
    }

    pub fn unlock(self, mode: Mode) {
        as_transaction(|| self.tag().release(mode, Life::Transaction));
        self.place().into_iter().for_each(order::gave_back);
    }

    /// Returns whether the guard is held for the time of one call.
    fn is_of_a_call(self) -> bool {
        matches!(self, Guard::Stripe(_) | Guard::Raise)
    }

    /// Returns the guard's place in the order; `None` for a guard that no call waits for while it holds others.
    fn place(self) -> Option<Place> {
        let (step, key) = match self {
            Guard::Fencer(_) => (2, 0),
            Guard::Fence(fence) => (4, fence),
            Guard::Stripe(stripe) => (7, stripe.into()),
            Guard::Raise => (8, 0),
            _ => return None,
        };
        Some(Place { step, key })
    }

    /// Takes the lock beyond transactions, until [`Guard::let_go`], unless another process is in the way.
    pub fn try_hold(self, mode: Mode) -> bool {
        self.tag().acquire(mode, Life::Process, false)
    }

    pub fn let_go(self, mode: Mode) {
        self.tag().release(mode, Life::Process);
    }

    /// Returns whether no other process holds the lock at this instant.
    pub fn is_free(self) -> bool {
        let free = self.try_lock(Mode::Exclusive);
        if free {
            self.unlock(Mode::Exclusive);
        }
        free
    }

    /// Returns whether transactions that are prepared, or are being prepared, hold the lock in joint mode.
    pub fn is_held_jointly(self) -> bool {
        let free = self.try_lock(Mode::Shared);
        if free {
            self.unlock(Mode::Shared);
        }
        !free
    }
}

/// How long a lock is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// To the end of the (sub)transaction.
    Transaction,
    /// Until it is released, or the process ends.
    Process,
}

/// An advisory-type lock of this database.
pub(super) struct Tag(pg_sys::LOCKTAG);

impl Tag {
    pub(super) fn new(class: u16, key: u64) -> Tag {
        Tag(pg_sys::LOCKTAG {
            locktag_field1: server::database(),
            locktag_field2: (key >> 32) as u32,
            locktag_field3: key as u32,
            locktag_field4: class,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        })
    }

    /// Takes the lock. Returns whether it was taken.
    pub(super) fn acquire(&self, mode: Mode, life: Life, wait: bool) -> bool {
        // SAFETY: the tag is complete; raises when the lock table is full, or when a wait is cancelled or is a deadlock
        let result = unsafe { pg_sys::LockAcquire(&self.0, mode.raw(), life == Life::Process, !wait) };
        result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }

    pub(super) fn release(&self, mode: Mode, life: Life) {
        // SAFETY: the tag is complete
        unsafe { pg_sys::LockRelease(&self.0, mode.raw(), life == Life::Process) };
    }

    /// Returns whether another process waits for a lock that this process holds.
    pub(super) fn has_waiters(&self, mode: Mode, life: Life) -> bool {
        // SAFETY: the tag is complete, and this backend has the lock
        unsafe { pg_sys::LockHasWaiters(&self.0, mode.raw(), life == Life::Process) }
    }
}

/// Makes locks belong to the (sub)transaction, not to the portal in which the call runs. A cursor that fails in a
/// savepoint would otherwise release locks that it took before that savepoint.
pub fn as_transaction<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: in a transaction. When PostgreSQL raises, the code that catches it sets the owner again.
    unsafe {
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        let result = work();
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

impl Mode {
    fn raw(self) -> pg_sys::LOCKMODE {
        match self {
            Mode::Shared => pg_sys::ShareLock as pg_sys::LOCKMODE,
            Mode::Joint => pg_sys::RowExclusiveLock as pg_sys::LOCKMODE,
            Mode::Exclusive => pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
        }
    }
}
