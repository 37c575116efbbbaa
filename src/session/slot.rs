//! The slot of a session that has a row: found, or made again after a restart; and which role may use it.

use super::row::{self, SessionRow};
use super::{death, ending};
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::pg::catalog::Home;
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

/// Returns what stands for a session that has a row, by its slot, or by that row where it has none. It makes no slot.
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

impl Call {
    /// Returns the slot of a session that has a row, made again if the server has been restarted since; `None` for one
    /// that is dead for good. An error where all slots are taken: the session lives by its row.
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
            // It was passed over in line while it had no slot.
            self.database.flag(RESCAN);
            self.shared.wake(self.database);
        }
        // A close that was prepared before the restart may have ended it since the row was looked at. No other call
        // would find that end.
        if row::row(row.session).is_none() {
            self.shared.end(at, true);
        } else if frozen {
            ending::thaw(self.shared, at);
        } else if ending::is_ending(row.session) {
            // By a stand-in, and it may have come to its commit before there was a slot to freeze.
            self.shared.freeze(at);
        }
        Ok(Some(at))
    }

    /// The same for a call that names the session: a stand-in where all slots are taken.
    pub(super) fn at_of(&self, row: &SessionRow) -> Option<SlotRef> {
        if let Ok(at) = self.slot_of(row) {
            return at;
        }
        let at = self.shared.stand_in(self.home, &self.opening_of(row)?);
        row::row(row.session).map(|_| at)
    }

    /// Returns what the slot of a session is made with that has a row and none; `None` for one that is dead for good.
    fn opening_of(&self, row: &SessionRow) -> Option<Opening> {
        let by_row = self.shared.standing(self.home, row.session, row.boot_id, row.ttl_ms);
        if !by_row.alive() {
            return None;
        }
        // It had expired when a transaction took something from it that was prepared before the restart.
        let deadline = if Guard::Taken(row.session).is_held_jointly() { by_row.now } else { by_row.until };
        // After that: PostgreSQL lets go of a guard once all can see what its transaction has written.
        if death::is_recorded(row.session) {
            return None;
        }
        // And what such a transaction has granted to it is committed at an unknown time, or has been since the restart.
        let unproven = self.shared.unproven_when_found(Guard::Promised(row.session).is_held_jointly());
        let (session, role, ttl_ms, private) = (row.session, row.role, row.ttl_ms, row.private);
        let frozen = ending::is_ending(session);
        Some(Opening { session, role, ttl_ms, private, deadline, opened_by: 0, unproven, frozen, most: None })
    }

    /// Returns what stands for a session that has a row. `None`: it is dead.
    pub fn standing_of(&self, row: &SessionRow) -> Option<Standing> {
        // A call that judges a session of before a restart makes its slot, so that all judge alike from then on.
        let standing = match self.slot_of(row) {
            Ok(at) => at.and_then(|at| self.shared.look(at)),
            Err(_) => Some(standing(self.shared, self.home, row.session, row.boot_id, row.ttl_ms)),
        };
        standing.filter(Standing::alive)
    }

    /// Returns whether a waiter may be granted to. A session whose end is being committed still has leases, but gets no
    /// more; nor does one without a slot.
    pub fn is_eligible(&self, row: &SessionRow) -> bool {
        let at = if row.draining { None } else { self.slot_of(row).ok().flatten() };
        let Some(at) = at else { return false };
        // An end that was prepared may have been rolled back, which wakes no process.
        ending::thaw(self.shared, at);
        self.shared.look(at).is_some_and(|standing| standing.state == State::Alive)
    }

    /// Returns the slot of a session that lives, or its stand-in.
    pub fn living(&self, session: Uuid) -> Result<Option<SlotRef>> {
        let at = match self.shared.find(self.home, session) {
            None => row::row(session).and_then(|row| self.at_of(&row)),
            at => at,
        };
        Ok(at.filter(|at| self.shared.look(*at).is_some_and(|standing| standing.alive())))
    }

    /// Returns the guard of a session's fenced transactions. A lease goes into grace and back while such a one is open,
    /// so what keeps it in grace has the guard of the session that let go of it.
    pub fn fencer(&self, at: SlotRef) -> Guard {
        let of = if self.shared.is_private(at) { row::row(at.session()).and_then(|row| row.fencer) } else { None };
        Guard::Fencer(of.unwrap_or(at.session()))
    }

    /// Returns the slot of a session that the caller has named and may use: by its slot if it has one, by its row
    /// otherwise. `None` for a private one.
    pub fn session(&self, session: Uuid) -> Result<Option<SlotRef>> {
        if is_private(self.shared, self.home, session) { Ok(None) } else { self.holder(session, None) }
    }

    /// Returns the slot of a session that the caller may use, private or not. `resource`: what it has, where the caller
    /// has named that and not the session.
    pub fn holder(&self, session: Uuid, resource: Option<&str>) -> Result<Option<SlotRef>> {
        if let Some((at, role)) = find(self.shared, self.home, session) {
            authorize(self.caller, role, resource)?;
            return Ok(Some(at));
        }
        let Some(row) = row::row(session) else {
            return Ok(None);
        };
        authorize(self.caller, row.role, resource)?;
        Ok(self.at_of(&row))
    }
}

/// Returns the slot of a session, and its role.
pub(super) fn find(shared: &Shared, home: Home, session: Uuid) -> Option<(SlotRef, u32)> {
    let at = shared.find(home, session)?;
    Some((at, shared.role(at)?))
}

/// Refuses a role that may not use a session: the role that opened it may, and its members, if they know the uuid.
/// `resource`: what the session has, where the caller has named that and not the session.
pub fn authorize(caller: pg_sys::Oid, role: u32, resource: Option<&str>) -> Result<()> {
    let role = pg_sys::Oid::from(role);
    if caller == role || role::acts_as(caller, role) {
        return Ok(());
    }
    Err(Error::Foreign { owner: role_name(role), resource: resource.map(str::to_owned) }.into())
}

/// Returns whether a session exists for one lease, which is used by its name and fence. To all verbs that take a
/// session but session_close it is unknown: it could come to hold other things, and they would end with that one lease.
pub(super) fn is_private(shared: &'static Shared, home: Home, session: Uuid) -> bool {
    match shared.find(home, session) {
        Some(at) => shared.is_private(at),
        None => row::row(session).is_some_and(|row| row.private),
    }
}
