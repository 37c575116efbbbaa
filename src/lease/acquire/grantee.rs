//! Which sessions may be granted something.

use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::session::{self, SessionRow};
use crate::shmem::slots::SlotRef;
use crate::shmem::word::State;

/// The reason for a session that has no slot and asks for something new (see [`crate::shmem::stand_in`]).
pub const SESSIONS_FULL: &str = "sessions_full";

/// Returns the row of a session that may be granted something new, or the reason why it may not. The session cannot end
/// under the grant: its row is read after the guard that its end needs.
pub fn grantee(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if me.is_stand_in() { Err(SESSIONS_FULL) } else { holder(call, me) }
}

/// The same for what the session has already.
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
