//! Seats: a session has at most one permit of a semaphore.
//!
//! A permit that the session has let go of is its own for its grace: work under that fence is still accepted. A session
//! that has a permit, or is just being given one, gets no other one. So it has no turn in the semaphore's line:
//! [`crate::lease::line`] passes over it, else a free permit would wait for a session that may not have it.

use super::declaration::{self, Kind};
use super::row::{self, Leases};
use crate::base::limits;
use crate::call::Call;
use crate::keys;
use crate::pg::guard::{Guard, Mode};
use crate::pg::table::{Key, page_of};
use crate::session::{self, succession};
use pgrx::Uuid;

/// Returns whether a session has no permit of the semaphore but in this slot, and is given none until this transaction
/// ends. A permit that it has let go of is its own for its grace: work under that fence is still accepted.
pub fn is_only_permit(call: &Call, resource: &str, slot: i32, session: Uuid) -> bool {
    Guard::Seat(session, keys::fnv1a(resource)).try_lock(Mode::Exclusive)
        && row::of_session(resource, session).iter().all(|row| row.slot == slot)
        && !keeps_another(call, resource, Some(slot), session)
}

/// Returns whether a session has let go, with a grace that is not over, of a slot of a resource, other than this one.
fn keeps_another(call: &Call, resource: &str, slot: Option<i32>, session: Uuid) -> bool {
    let is_kept_in = |private: Uuid| {
        session::row(private).is_some_and(|row| row.fencer == Some(session))
            && !matches!(call.living(private), Ok(None))
    };
    // After the session's own rows: what leaves it for its grace is seen in one of both.
    let graces = succession::graces();
    if graces.entries(&[Key::Uuid(session)], limits::MAX_GRACES) < limits::MAX_GRACES {
        let privates = page_of(&graces, &[session], usize::MAX, 0, |row| Some(row.required::<Uuid>(1)));
        let has_another = |private: Uuid| row::of_session(resource, private).iter().any(|row| Some(row.slot) != slot);
        return privates.into_iter().any(|private| has_another(private) && is_kept_in(private));
    }
    let others = Leases::open().rows(resource).into_iter().filter(|row| Some(row.slot) != slot);
    others.filter_map(|row| row.session).any(|holder| holder != session && is_kept_in(holder))
}

/// Returns whether a resource is a semaphore that a session has a permit of, or is getting or giving back one in a
/// transaction that is open.
pub fn has_permit(call: &Call, resource: &str, session: Uuid) -> bool {
    let is_semaphore =
        || declaration::of(resource).is_some_and(|declaration| matches!(declaration.kind, Kind::Semaphore));
    let is_given = || !Guard::Seat(session, keys::fnv1a(resource)).is_free();
    !call.declarations().none()
        && is_semaphore()
        && (row::has_or_had_any(resource, session, is_given) || keeps_another(call, resource, None, session))
}
