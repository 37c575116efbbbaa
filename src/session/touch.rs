//! Touching a session: a heartbeat, and what it says.

use super::ending;
use super::row::row;
use super::slot::{authorize, find, is_private};
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::pg::catalog::{self, Home};
use crate::pg::{clock, role};
use crate::seam;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use crate::shmem::{Shared, shared};
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;

/// What became of a heartbeat.
pub struct Touch {
    pub home: Home,
    pub at: Option<SlotRef>,
    pub standing: Option<Standing>,
}

impl Touch {
    pub fn alive(&self) -> bool {
        self.standing.is_some_and(|standing| standing.alive())
    }

    /// Returns how long the session may be trusted, counted from the start of the call; `None` unless it lives. Where
    /// that takes confirmations, a transaction that grants to the session vouches for nothing: it is yet to be
    /// committed, and that to be acknowledged.
    pub fn trust_ms(&self) -> Option<i32> {
        let standing = self.standing.filter(Standing::alive)?;
        let confirming = shared().is_ok_and(Shared::is_confirming);
        let granting = confirming && self.at.is_some_and(seam::revises);
        Some(if granting { 0 } else { standing.trust_ms() })
    }

    /// Returns whether it is only for want of a confirmation that a living session may not be trusted.
    pub fn unconfirmed(&self) -> bool {
        let lives_on = self.standing.is_some_and(|standing| clock::trust_ms(standing.left()) > 0);
        lives_on && self.trust_ms() == Some(0)
    }

    /// Returns whether the session lives and has no slot: no heartbeat extends it.
    pub fn without_slot(&self) -> bool {
        self.alive() && self.at.is_some_and(|at| at.is_stand_in())
    }

    /// Returns the slot of the session if it may acquire; otherwise the reason why it may not.
    pub fn acquirer(&self) -> std::result::Result<SlotRef, &'static str> {
        match (self.refusal(), self.at) {
            (None, Some(at)) => Ok(at),
            (refusal, _) => Err(refusal.unwrap_or("unknown_session")),
        }
    }

    /// Returns why there is nothing to do for the session; `None` while it lives.
    pub fn refusal(&self) -> Option<&'static str> {
        match self.standing.map(|standing| standing.state) {
            Some(State::Alive) => None,
            Some(State::Frozen) => Some("closing"),
            Some(_) => Some("expired"),
            None => Some("unknown_session"),
        }
    }
}

/// What a verb that needs a living session raises, for the reason of a refusal. The SQLSTATEs come with the objects of
/// the database, and not with the library: clients are changed in between.
pub fn ended(reason: &'static str) -> ErrorReport {
    Error::SessionEnded { reason, former: !catalog::has_objects_of_today() }.into()
}

/// A heartbeat for a session that the caller has named and may use. A steady client's touches nothing but its slot.
pub fn touch(shared: &'static Shared, session: Uuid) -> Result<Touch> {
    let home = catalog::home();
    if is_private(shared, home, session) {
        return Ok(Touch { home, at: None, standing: None });
    }
    touch_holder(shared, session, None)
}

/// The same for the session that has a resource, where that is what the caller has named.
pub fn touch_holder(shared: &'static Shared, session: Uuid, resource: Option<&str>) -> Result<Touch> {
    let caller = role::current();
    let home = catalog::home();
    let at = match find(shared, home, session) {
        Some((at, role)) => {
            authorize(caller, role, resource)?;
            at
        }
        None => {
            let call = Call::open(shared)?;
            let Some(row) = row(session) else { return Ok(Touch { home, at: None, standing: None }) };
            authorize(caller, row.role, resource)?;
            match call.at_of(&row) {
                Some(at) => at,
                None => return Ok(Touch { home, at: None, standing: Some(Standing::dead()) }),
            }
        }
    };
    let standing = shared.beat(at).map(|standing| ending::found(shared, at, standing));
    Ok(Touch { home, at: Some(at), standing })
}
