//! Seats: a session has at most one permit of a semaphore.
//!
//! A permit that the session has released with grace still counts until the grace is over: work under its fence is
//! accepted. A session that has a permit, or is being given one, gets no other. So it has no turn in the semaphore's
//! line: [`crate::lease::line`] passes over its places, also those that a take-over has left to it. Otherwise a free
//! permit would wait for a session that may not have it.

use super::declaration::{self, Kind};
use super::row::{self, Leases};
use crate::base::limits;
use crate::call::Call;
use crate::keys;
use crate::pg::guard::{Guard, Mode};
use crate::pg::table::{Key, page_of};
use crate::session::{self, succession};
use pgrx::Uuid;

/// Returns whether a session has no permit of the semaphore except in this slot; one in its grace counts. If so, keeps
/// others from granting it another one until this transaction ends. Returns false also while another transaction does
/// so.
pub fn is_only_permit(call: &Call, resource: &str, slot: i32, session: Uuid) -> bool {
    Guard::Seat(session, keys::fnv1a(resource)).try_lock(Mode::Exclusive)
        && row::of_session(resource, session).iter().all(|row| row.slot == slot)
        && !keeps_another(call, resource, Some(slot), session)
}

/// Returns whether a session keeps another slot of a resource in grace.
fn keeps_another(call: &Call, resource: &str, slot: Option<i32>, session: Uuid) -> bool {
    let is_kept_in = |private: Uuid| {
        session::row(private).is_some_and(|row| row.fencer == Some(session))
            && !matches!(call.living(private), Ok(None))
    };
    // The callers read the session's own rows first. So a lease that goes into grace meanwhile is seen there or here.
    let graces = succession::graces();
    if graces.entries(&[Key::Uuid(session)], limits::MAX_GRACES) < limits::MAX_GRACES {
        let privates = page_of(&graces, &[session], usize::MAX, 0, |row| Some(row.required::<Uuid>(1)));
        let has_another = |private: Uuid| row::of_session(resource, private).iter().any(|row| Some(row.slot) != slot);
        return privates.into_iter().any(|private| has_another(private) && is_kept_in(private));
    }
    let others = Leases::open().rows(resource).into_iter().filter(|row| Some(row.slot) != slot);
    others.filter_map(|row| row.session).any(|holder| holder != session && is_kept_in(holder))
}

/// Returns whether the session to which a place belongs has a permit of a resource that is a semaphore. `session`: the
/// one that the place names. If that one is dead, the place belongs to its heir.
pub fn has_permit(call: &Call, resource: &str, session: Uuid) -> bool {
    let is_semaphore =
        || declaration::of(resource).is_some_and(|declaration| matches!(declaration.kind, Kind::Semaphore));
    // Usually no session has been taken over.
    let heir = || succession::table().has_entry(&[]).then(|| succession::heir(call, session)).flatten();
    !call.declarations().none()
        && is_semaphore()
        && (has_own_permit(call, resource, session) || heir().is_some_and(|heir| has_own_permit(call, resource, heir)))
}

/// Returns whether a session has a permit of a semaphore. A permit that an open transaction gives or takes away counts.
fn has_own_permit(call: &Call, resource: &str, session: Uuid) -> bool {
    let is_given = || !Guard::Seat(session, keys::fnv1a(resource)).is_free();
    row::has_or_had_any(resource, session, is_given) || keeps_another(call, resource, None, session)
}
