//! The slot of a session that has a row: how it is found, or made again after a restart, and which roles may use it.

use super::row::{self, SessionRow};
use super::{death, ending};
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::pg::catalog::Home;
use crate::pg::clock;
use crate::pg::guard::Guard;
use crate::pg::role;
use crate::pg::text::role_name;
use crate::shmem::Shared;
use crate::shmem::databases::RESCAN;
use crate::shmem::map::Opening;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use pgrx::{Uuid, pg_sys};
use std::sync::atomic::Ordering;

/// Returns the standing of a session that has a row: from its slot, or from the row if it has no slot. Makes no slot.
pub fn standing(shared: &'static Shared, home: Home, session: Uuid, boot_id: i64, ttl_ms: i32) -> Standing {
    let mut standing = shared.standing(home, session, boot_id, ttl_ms);
    if standing.alive() && shared.find(home, session).is_none() {
        if death::is_recorded(session) {
            return Standing::dead();
        }
        if ending::is_ending(session) {
            standing.state = State::Frozen;
        }
    }
    standing
}

/// Returns when a dead session's time ended, in microseconds since 2000 by the wall clock; `None` if the session lives,
/// or if nothing tells. `row`: the `boot_id` and the TTL of the session's row, if it has one.
pub fn ended_at(shared: &'static Shared, home: Home, session: Uuid, row: Option<(i64, i32)>) -> Option<i64> {
    let by_slot = shared.find(home, session).and_then(|at| shared.look(at));
    let by_row = || {
        let (boot_id, ttl_ms) = row.filter(|(boot_id, _)| *boot_id != shared.boot_id())?;
        Some(standing(shared, home, session, boot_id, ttl_ms))
    };
    let standing = by_slot.or_else(by_row).filter(|standing| !standing.alive())?;
    Some(clock::timestamp() - standing.now.saturating_sub(standing.until).cast_signed())
}

impl Call {
    /// Returns the slot of a session that has a row; makes the slot if the server has been restarted. Returns `None` if
    /// the session is dead for good. Fails if all slots are taken; the session then lives by its row.
    pub fn slot_of(&self, row: &SessionRow) -> Result<Option<SlotRef>> {
        if let Some(at) = self.shared.find(self.home, row.session) {
            return Ok(Some(at));
        }
        let Some(opening) = self.opening_of(row) else { return Ok(None) };
        let (deadline, frozen) = (opening.deadline, opening.frozen);
        let at = self.shared.enter(self.home, opening)?;
        if row.fencer.is_some() {
            self.shared.cap(at, deadline);
        }
        if self.database.without_slot.load(Ordering::Acquire) > 0 {
            // While the session had no slot, hand-overs passed it over in line.
            self.database.flag(RESCAN);
            self.shared.wake(self.database);
        }
        // A close that was prepared before the restart may have committed since the row was read. No other call would
        // find that end.
        if row::row_or_opening(row.session).is_none() {
            self.shared.end(at, true);
        } else if frozen {
            ending::thaw(self.shared, at);
        } else if ending::is_ending(row.session) {
            // A call that used a stand-in is ending the session. It may have come to its commit before there was a slot
            // to freeze.
            self.shared.freeze(at);
        }
        Ok(Some(at))
    }

    /// Returns the slot of a session for a call that names the session; if all slots are taken, a stand-in.
    pub(super) fn at_of(&self, row: &SessionRow) -> Option<SlotRef> {
        if let Ok(at) = self.slot_of(row) {
            return at;
        }
        let at = self.shared.stand_in(self.home, &self.opening_of(row)?);
        row::row_or_opening(row.session).map(|_| at)
    }

    /// Returns the values for the slot of a session that has a row and no slot; `None` if the session is dead for good.
    fn opening_of(&self, row: &SessionRow) -> Option<Opening> {
        let by_row = self.shared.standing(self.home, row.session, row.boot_id, row.ttl_ms);
        if !by_row.alive() {
            return None;
        }
        // If the guard is held, a transaction that was prepared before the restart took something from the session. So
        // the session had expired.
        let deadline = if Guard::Taken(row.session).is_held_jointly() { by_row.now } else { by_row.until };
        // This check must come after the guard's. PostgreSQL releases a guard only after the writes of its transaction
        // are visible.
        if death::is_recorded(row.session) {
            return None;
        }
        // A prepared transaction may have granted to the session. Its commit is yet to come, or came since the restart
        // at an unknown time.
        let unproven = self.shared.unproven_when_found(Guard::Promised(row.session).is_held_jointly());
        let (session, role, ttl_ms, private) = (row.session, row.role, row.ttl_ms, row.private);
        let frozen = ending::is_ending(session);
        Some(Opening {
            session,
            role,
            ttl_ms,
            private,
            deadline,
            opened_by: row.opened_by,
            unproven,
            frozen,
            most: None,
        })
    }

    /// Returns the standing of a living session that has a row; `None` if the session is dead.
    pub fn standing_of(&self, row: &SessionRow) -> Option<Standing> {
        // The call makes the slot of a session from before the restart. From then on all calls judge the session alike.
        let standing = match self.slot_of(row) {
            Ok(at) => at.and_then(|at| self.shared.look(at)),
            Err(_) => Some(standing(self.shared, self.home, row.session, row.boot_id, row.ttl_ms)),
        };
        standing.filter(Standing::alive)
    }

    /// Returns whether a waiter may be granted a lease. A session gets no new lease while it drains, while its end
    /// commits, or if it has no slot.
    pub fn is_eligible(&self, row: &SessionRow) -> bool {
        let at = if row.draining { None } else { self.slot_of(row).ok().flatten() };
        let Some(at) = at else { return false };
        // A prepared end may have been rolled back, and that wakes no process.
        ending::thaw(self.shared, at);
        self.shared.look(at).is_some_and(|standing| standing.state == State::Alive)
    }

    /// Returns the slot or the stand-in of a session that lives.
    pub fn living(&self, session: Uuid) -> Result<Option<SlotRef>> {
        let at = match self.shared.find(self.home, session) {
            None => row::row(session).and_then(|row| self.at_of(&row)),
            at => at,
        };
        Ok(at.filter(|at| self.shared.look(*at).is_some_and(|standing| standing.alive())))
    }

    /// Returns the guard that a session's fenced transactions hold. For a private session that keeps a lease in grace
    /// it is the guard of the session that released the lease. So the guard stays the same while a lease goes into
    /// grace and back under an open fenced transaction.
    pub fn fencer(&self, at: SlotRef) -> Guard {
        let of = if self.shared.is_private(at) { row::row(at.session()).and_then(|row| row.fencer) } else { None };
        Guard::Fencer(of.unwrap_or(at.session()))
    }

    /// Returns the slot of a session that the caller names, if the caller may use it; made from the row if need be.
    /// Returns `None` for a private session.
    pub fn session(&self, session: Uuid) -> Result<Option<SlotRef>> {
        if is_private(self.shared, self.home, session) { Ok(None) } else { self.holder(session, None) }
    }

    /// Returns the slot of a session that the caller may use, private or not. `resource` is what the session holds, if
    /// the caller named the resource instead of the session.
    pub fn holder(&self, session: Uuid, resource: Option<&str>) -> Result<Option<SlotRef>> {
        if let Some((at, role)) = find(self.shared, self.home, session) {
            authorize(self.caller, role, resource)?;
            return Ok(Some(at));
        }
        let Some(row) = row::row_or_opening(session) else {
            return Ok(None);
        };
        authorize(self.caller, row.role, resource)?;
        Ok(self.at_of(&row))
    }
}

/// Returns the slot of a session and its role. If the session's opening was rolled back, the slot is one of a session
/// that is not known.
pub(super) fn find(shared: &Shared, home: Home, session: Uuid) -> Option<(SlotRef, u32)> {
    let at = shared.find(home, session)?;
    shared.erase_rolled_back(at);
    Some((at, shared.role(at)?))
}

/// Refuses a caller who may not use a session. The role that opened the session and the members of that role may, if
/// they know the uuid. `resource` is what the session holds, if the caller named the resource instead of the session.
pub fn authorize(caller: pg_sys::Oid, role: u32, resource: Option<&str>) -> Result<()> {
    let role = pg_sys::Oid::from(role);
    if caller == role || role::acts_as(caller, role) {
        return Ok(());
    }
    Err(Error::Foreign { owner: role_name(role), resource: resource.map(str::to_owned) }.into())
}

/// Returns whether a session is private: it exists for one lease, which callers use by its name and fence. Every verb
/// that takes a session, except session_close, treats a private session as unknown. Otherwise it could come to hold
/// other things, and they would end with that one lease.
pub(super) fn is_private(shared: &'static Shared, home: Home, session: Uuid) -> bool {
    match shared.find(home, session) {
        Some(at) => shared.is_private(at),
        None => row::row(session).is_some_and(|row| row.private),
    }
}
