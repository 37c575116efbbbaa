//! Touching a session: a heartbeat, and the answers of verbs that depend on it.

use super::ending;
use super::row::row_or_opening;
use super::slot::{authorize, find, is_private};
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::pg::catalog::{self, Home};
use crate::pg::{clock, role, transaction};
use crate::seam;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use crate::shmem::{Shared, shared};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, Uuid};
use std::cell::Cell;

/// The reason for a session whose opening another transaction has yet to commit.
pub const UNCOMMITTED: &str = "uncommitted";

/// The result of a heartbeat.
pub struct Touch {
    pub home: Home,
    pub at: Option<SlotRef>,
    pub standing: Option<Standing>,
    /// When the call came, by [`clock::now`].
    pub came: u64,
    /// Whether this transaction, when the call came, had done something for the session that others do not see yet.
    pub pending: bool,
}

thread_local! {
    /// The start of the last transaction that was warned of being open for too long.
    static WARNED: Cell<i64> = const { Cell::new(i64::MIN) };
}

impl Touch {
    /// A look at a session, without a heartbeat.
    pub fn look(home: Home, at: Option<SlotRef>, standing: Option<Standing>) -> Touch {
        Touch { home, at, standing, came: standing.map_or_else(clock::now, |standing| standing.now), pending: false }
    }

    /// Returns whether this transaction has pending work for the session and is open for longer than heartbeats are
    /// apart: its client may not know that it is in a transaction at all. Warns once in each such transaction, since
    /// behind a pooler the next one on this connection may be of another client.
    pub fn overdue(&self) -> bool {
        let Some(at) = self.at.filter(|_| self.pending && self.alive()) else { return false };
        let third = shared().map_or(i64::MAX, |shared| i64::from(shared.ttl_ms(at)) * 1_000 / 3);
        let began = transaction::began_at();
        let overdue = clock::timestamp() - began > third;
        if overdue && WARNED.replace(began) != began {
            ErrorReport::from(Error::Pending).report(PgLogLevel::WARNING);
        }
        overdue
    }

    pub fn alive(&self) -> bool {
        self.standing.is_some_and(|standing| standing.alive())
    }

    /// Returns how long the client may trust the session, counted from the start of the call; `None` unless the session
    /// lives. If trust needs confirmations, it is 0 in a transaction that grants to the session: that grant has yet to
    /// commit and to be acknowledged.
    pub fn trust_ms(&self) -> Option<i32> {
        let standing = self.standing.filter(Standing::alive)?;
        let confirming = shared().is_ok_and(Shared::is_confirming);
        let granting = confirming && self.at.is_some_and(seam::revises);
        Some(if granting { 0 } else { standing.trust_ms(self.came) })
    }

    /// Returns the revision from before the call looked at anything: a wait on it misses no change since. `None` unless
    /// the session lives.
    pub fn revision(&self) -> Option<i64> {
        self.standing.filter(Standing::alive).map(|standing| standing.revision.cast_signed())
    }

    /// Returns whether a session lives but may not be trusted, only because a confirmation is missing.
    pub fn unconfirmed(&self) -> bool {
        let lives_on = self.standing.is_some_and(|standing| clock::trust_ms(standing.left()) > 0);
        lives_on && self.trust_ms() == Some(0)
    }

    /// Notes how the session stands after a wait.
    pub fn stands(&mut self, standing: Option<Standing>) {
        let is_rolled_back = |at| shared().is_ok_and(|shared| shared.erase_rolled_back(at));
        self.standing = standing.filter(|_| !self.at.is_some_and(is_rolled_back));
    }

    /// Returns whether the session lives, but the transaction that opens it is another one, and has not been committed.
    pub fn uncommitted(&self) -> bool {
        let uncommitted = |at| shared().is_ok_and(|shared| shared.is_uncommitted(at));
        self.alive() && self.at.is_some_and(uncommitted)
    }

    /// Returns whether the session lives but has no slot. No heartbeat extends such a session.
    pub fn without_slot(&self) -> bool {
        self.alive() && self.at.is_some_and(|at| at.is_stand_in())
    }

    /// Returns the slot of the session if it may acquire; otherwise the reason of the refusal.
    pub fn acquirer(&self) -> std::result::Result<SlotRef, &'static str> {
        match (self.refusal(), self.at) {
            (None, Some(_)) if self.uncommitted() => Err(UNCOMMITTED),
            (None, Some(at)) => Ok(at),
            (refusal, _) => Err(refusal.unwrap_or("unknown_session")),
        }
    }

    /// Returns the reason to refuse the session; `None` if it lives.
    pub fn refusal(&self) -> Option<&'static str> {
        match self.standing.map(|standing| standing.state) {
            Some(State::Alive) => None,
            Some(State::Frozen) => Some("closing"),
            Some(_) => Some("expired"),
            None => Some("unknown_session"),
        }
    }
}

/// Returns the error of a verb that needs a living session, from the reason of the refusal. Its SQLSTATE depends on the
/// version of the objects in the database, not of the library: clients change when the objects do.
pub fn ended(reason: &'static str) -> ErrorReport {
    Error::SessionEnded { reason, former: !catalog::has_objects_of_today() }.into()
}

/// Heartbeats a session that the caller names and may use. If it has a slot, the call touches nothing but the slot.
pub fn touch(shared: &'static Shared, session: Uuid) -> Result<Touch> {
    let home = catalog::home();
    if is_private(shared, home, session) {
        return Ok(Touch::look(home, None, None));
    }
    touch_holder(shared, session, None)
}

/// Heartbeats the session that holds a resource, if the caller named the resource instead of the session.
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
            let Some(row) = row_or_opening(session) else { return Ok(Touch::look(home, None, None)) };
            authorize(caller, row.role, resource)?;
            match call.at_of(&row) {
                Some(at) => at,
                None => return Ok(Touch::look(home, None, Some(Standing::dead()))),
            }
        }
    };
    let standing = shared.beat(at).map(|standing| ending::found(shared, at, standing));
    if standing.is_some_and(|standing| standing.alive() && shared.is_stray(at, standing.now)) {
        ErrorReport::from(Error::Stray).report(PgLogLevel::NOTICE);
    }
    let pending = transaction::has_written() && (shared.is_opened_here(at) || seam::revises(at));
    let touch = Touch { pending, ..Touch::look(home, Some(at), standing) };
    touch.overdue();
    Ok(touch)
}
