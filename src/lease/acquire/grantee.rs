//! Which sessions may be granted something.

use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::session::{self, SessionRow};
use crate::shmem::slots::SlotRef;
use crate::shmem::word::State;

/// What a session that has no slot is told when it asks for something new (see [`crate::shmem::stand_in`]).
pub const SESSIONS_FULL: &str = "sessions_full";

/// The session's row if it may be granted something new, and cannot end under the grant: it is looked at after the lock
/// that its end wants. Why not, otherwise.
pub fn grantee(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if me.is_stand_in() { Err(SESSIONS_FULL) } else { holder(call, me) }
}

/// The same for what is the session's own already.
pub(super) fn holder(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if !Guard::Grantee(me.session()).try_lock(Mode::Shared) {
        return Err("closing");
    }
    match (session::row(me.session()), call.shared.look(me).map(|standing| standing.state)) {
        (_, Some(State::Frozen)) => Err("closing"),
        (Some(row), Some(State::Alive)) if row.draining => Err("draining"),
        (Some(row), Some(State::Alive)) => Ok(row),
        _ => Err("expired"),
    }
}
