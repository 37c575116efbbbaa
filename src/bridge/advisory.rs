//! The locks of a bridge: the user's advisory lock of one bigint, as `pg_advisory_lock` and its like take it, and the
//! guard of the name.

use super::side::Closed;
use crate::keys;
use crate::pg::guard::{Guard, Mode};
use crate::pg::user_lock::UserLock;

fn guard(name: &str) -> Guard {
    Guard::Bridge(keys::fold_sha256(name))
}

/// Tries to take the user's lock in share mode, beyond the end of transactions, until [`let_go`]. PostgreSQL counts:
/// each bridge to the lock takes and releases it once.
pub fn hold(key: i64) -> bool {
    UserLock(key).try_hold()
}

pub fn let_go(key: i64) {
    UserLock(key).let_go();
}

/// Returns whether another process waits for a lock that [`hold`] has taken.
pub fn is_waited_for(key: i64) -> bool {
    UserLock(key).is_waited_for()
}

/// Opens a bridge: checks pass from now on, beyond transactions, until [`close`]. Returns false if a check is just
/// looking at the guard.
pub fn open(name: &str) -> bool {
    guard(name).try_hold(Mode::Exclusive)
}

pub fn close(name: &str) {
    guard(name).let_go(Mode::Exclusive);
}

/// Holds the user's lock to the end of the transaction. Refuses unless the worker has also held the lock ever since the
/// grant; the refusal tells why.
pub fn cross(resource: &str, key: i64) -> Result<(), Closed> {
    if !UserLock(key).try_share() {
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

/// Returns whether the worker has opened a bridge.
fn is_open(name: &str) -> bool {
    let guard = guard(name);
    let closed = guard.try_lock(Mode::Shared);
    if closed {
        guard.unlock(Mode::Shared);
    }
    !closed
}
