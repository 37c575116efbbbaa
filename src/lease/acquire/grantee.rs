//! Which sessions may be granted a lease.

use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::session::{self, SessionRow};
use crate::shmem::slots::SlotRef;
use crate::shmem::word::State;

/// The reason of a refusal to a session that has no slot and asks for something new (see [`crate::shmem::stand_in`]).
pub const SESSIONS_FULL: &str = "sessions_full";

/// Returns the row of a session that may be granted something new, or the reason of the refusal. The session cannot end
/// during the grant: this function first takes the guard that the session's end needs, and then reads the row.
pub fn grantee(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if me.is_stand_in() { Err(SESSIONS_FULL) } else { holder(call, me) }
}

/// Returns the row of a session that may keep what it has, with or without a slot, or the reason of the refusal.
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
