//! Prepared ends of sessions. While the transaction that ends a session commits or is prepared, the session is frozen:
//! it keeps what it has, and nothing extends it.
//!
//! After a restart, only the session's row shows a prepared end: an open transaction deletes it. The guard of a close
//! does not show the end, because a bulk release takes the same guard and ends no session. A slot that is made from
//! such a row is frozen. `COMMIT PREPARED` and `ROLLBACK PREPARED` wake no process. So the session's next heartbeat, or
//! a rescan of the database, finds the outcome. If the row is gone, the session has ended. If the row is there and no
//! transaction deletes it, the session is thawed.

use super::row::{row, table};
use crate::pg::table::{Key, Sight};
use crate::seam;
use crate::shmem::Shared;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use pgrx::Uuid;

/// Returns whether another open transaction deletes the row of a session; if it commits, the session has ended. The
/// scan is dirty: that transaction may have changed the row first, and the latest snapshot then shows only the old
/// version.
pub fn is_ending(session: Uuid) -> bool {
    table().scan(Sight::Dirty, &[Key::Uuid(session)], |row, _| row.is_being_deleted().then_some(())).is_some()
}

/// Returns the state of a session. If the session is frozen and its prepared end has been decided, the session has
/// ended, or is thawed. A session that this transaction itself ends stays frozen: this transaction does not see its
/// row, whether it commits or not.
pub fn outcome(shared: &Shared, at: SlotRef) -> Option<State> {
    let state = |at| shared.look(at).map(|standing| standing.state);
    if state(at) != Some(State::Frozen) || seam::has_ended(at.session()) {
        return state(at);
    }
    if row(at.session()).is_none() {
        shared.end(at, false);
    } else {
        thaw(shared, at);
    }
    state(at)
}

/// Returns the standing of a session after its heartbeat. If this thaws the session, the heartbeat is repeated.
pub fn found(shared: &Shared, at: SlotRef, standing: Standing) -> Standing {
    if standing.state != State::Frozen || seam::has_ended(at.session()) {
        return standing;
    }
    match outcome(shared, at) {
        Some(State::Alive | State::Frozen) => shared.beat(at).unwrap_or(standing),
        _ => Standing::dead(),
    }
}

/// Thaws a session whose prepared end has been rolled back: it is frozen, and no open transaction deletes its row. A
/// transaction that ends a session thaws it itself if it rolls back. After a PREPARE, the call that finds the outcome
/// thaws it.
pub fn thaw(shared: &Shared, at: SlotRef) {
    let is_frozen = shared.look(at).is_some_and(|standing| standing.state == State::Frozen);
    if is_frozen && !is_ending(at.session()) && row(at.session()).is_some() {
        shared.thaw(at);
        // A transaction that began to end the session after the check may have found it frozen at its commit.
        if is_ending(at.session()) {
            shared.freeze(at);
        }
    }
}
