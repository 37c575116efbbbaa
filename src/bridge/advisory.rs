//! The locks of a bridge: that of the user, an advisory lock of one bigint as `pg_advisory_lock` and its like take it,
//! and the guard of the name.

use super::side::Closed;
use crate::keys;
use crate::pg::guard::{Guard, Mode, advisory_tag, as_transaction};
use pgrx::pg_sys::{self, LOCKMODE, LOCKTAG};

/// What PostgreSQL has for locks of one bigint, where those of two integers have 2.
const CLASS: u16 = 1;
const SHARED: LOCKMODE = pg_sys::ShareLock as LOCKMODE;
const EXCLUSIVE: LOCKMODE = pg_sys::ExclusiveLock as LOCKMODE;

fn tag(key: i64) -> LOCKTAG {
    advisory_tag(CLASS, key.cast_unsigned())
}

fn guard(name: &str) -> Guard {
    Guard::Bridge(keys::fold_sha256(name))
}

fn try_lock(tag: &LOCKTAG, mode: LOCKMODE, for_session: bool) -> bool {
    // SAFETY: the tag is complete; raises when the lock table is full
    let result = unsafe { pg_sys::LockAcquire(tag, mode, for_session, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Shares a user's lock to the end of the (sub)transaction, unless somebody has it exclusively or waits for that.
fn share(key: i64) -> bool {
    as_transaction(|| try_lock(&tag(key), SHARED, false))
}

/// The same beyond transactions, until [`let_go`]; once for each bridge that leads to it.
pub fn hold(key: i64) -> bool {
    try_lock(&tag(key), SHARED, true)
}

pub fn let_go(key: i64) {
    // SAFETY: the tag is complete, and the lock has been had by hold()
    unsafe { pg_sys::LockRelease(&tag(key), SHARED, true) };
}

/// Whether somebody waits for a lock that hold() has.
pub fn is_waited_for(key: i64) -> bool {
    // SAFETY: as above
    unsafe { pg_sys::LockHasWaiters(&tag(key), SHARED, true) }
}

/// Has checks pass from now on, beyond transactions, until [`close`]. False while a check is just looking.
pub fn open(name: &str) -> bool {
    try_lock(&guard(name).tag(), EXCLUSIVE, true)
}

pub fn close(name: &str) {
    // SAFETY: the tag is complete, and the lock has been had by open()
    unsafe { pg_sys::LockRelease(&guard(name).tag(), EXCLUSIVE, true) };
}

/// Holds the lock to the end of the transaction; refused unless the worker has it as well, and has had since the grant:
/// why.
pub fn cross(resource: &str, key: i64) -> Result<(), Closed> {
    if !share(key) {
        Err(closed("Another process has it exclusively, or waits for that."))
    } else if !is_open(resource) {
        Err(closed("The worker of eskit_lease has not taken it, or is just taking it again."))
    } else {
        Ok(())
    }
}

fn closed(why: &str) -> Closed {
    let hint = "Roll back and ask again: the lease may have a new fence by then. Whoever may read the view bridges sees which process has the lock.";
    Closed { why: why.to_owned(), hint }
}

/// Whether the worker has opened a bridge.
fn is_open(name: &str) -> bool {
    let guard = guard(name);
    let closed = guard.try_lock(Mode::Shared);
    if closed {
        guard.unlock(Mode::Shared);
    }
    !closed
}
