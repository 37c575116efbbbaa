//! Ends that are prepared. While its end is being committed, or is prepared, a session is frozen: it has what it had,
//! and nothing is extended.
//!
//! Over a restart only the session's row, which it deletes, tells of a prepared end. The guard of a close does not: a
//! bulk release, which ends no session, has the same. A slot that is made from such a row is frozen. `COMMIT PREPARED`
//! and `ROLLBACK PREPARED` wake no process. The session's next heartbeat, or a look through the database, finds what
//! became of the end: without a row the session has ended, and with a row that no transaction deletes any more it is
//! thawed.

use super::row::{row, table};
use crate::pg::table::{Key, Sight};
use crate::seam;
use crate::shmem::Shared;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use pgrx::Uuid;

/// Returns whether another transaction, which is open, deletes the row of a session: if that commits, the session has
/// ended. It may have changed the row before, which the latest snapshot shows as it was.
pub fn is_ending(session: Uuid) -> bool {
    table().scan(Sight::Dirty, &[Key::Uuid(session)], |row, _| row.is_being_deleted().then_some(())).is_some()
}

/// Returns what stands for a session that has just been heard of. A frozen one is found to have ended, or is thawed and
/// heard of anew; but not where this transaction ends it, to which its row is gone whether it commits or not.
pub fn found(shared: &Shared, at: SlotRef, standing: Standing) -> Standing {
    if standing.state != State::Frozen || seam::has_ended(at.session()) {
        return standing;
    }
    if row(at.session()).is_none() {
        shared.end(at, false);
        return Standing::dead();
    }
    thaw(shared, at);
    shared.beat(at).unwrap_or(standing)
}

/// Brings back a session whose end was prepared and has been rolled back: it is frozen, and has a row that no open
/// transaction deletes. A transaction that deletes the row thaws the session itself; if it is prepared, the call that
/// finds its end does.
pub fn thaw(shared: &Shared, at: SlotRef) {
    let is_frozen = shared.look(at).is_some_and(|standing| standing.state == State::Frozen);
    if is_frozen && !is_ending(at.session()) && row(at.session()).is_some() {
        shared.thaw(at);
        // One that has begun to end it since may have come to its commit and found it frozen.
        if is_ending(at.session()) {
            shared.freeze(at);
        }
    }
}
