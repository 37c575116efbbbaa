//! Standing: whether a session lives, and until when. The session's slot says so, or its row if it has no slot.

use super::shared::Shared;
use super::slot::SlotRef;
use super::word::{State, Word};
use crate::pg::catalog::Home;
use crate::pg::clock;
use pgrx::Uuid;

/// How a session stands, by a look at its slot.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub state: State,
    /// When the session's leases end, by [`clock::now`]; in the past for a dead session.
    pub until: u64,
    pub now: u64,
    pub revision: u64,
    /// By how much the last heartbeat came later than a third of the TTL after the one before, in microseconds.
    pub late: u64,
    /// Until when the session may be told to trust itself, whatever its deadline (see [`super::confirm`]).
    vouched_until: u64,
}

impl Standing {
    pub fn alive(&self) -> bool {
        matches!(self.state, State::Alive | State::Frozen)
    }

    /// Returns the session's remaining time, in microseconds.
    pub fn left(&self) -> u64 {
        if self.alive() { self.until.saturating_sub(self.now) } else { 0 }
    }

    /// Returns the trust: for how long, counted from a time before the look, the client may rely on the session. 0 if
    /// that is over.
    pub fn trust_ms(&self, since: u64) -> i32 {
        let until = if self.left() > 0 { self.until.min(self.vouched_until) } else { 0 };
        if until > self.now { clock::trust_ms(until.saturating_sub(since)) } else { 0 }
    }

    /// Returns the standing of an ended session that shared memory does not know.
    pub fn dead() -> Standing {
        let now = clock::now();
        Standing { state: State::Dead, until: now, now, revision: 0, late: 0, vouched_until: 0 }
    }
}

impl Shared {
    pub(super) fn standing_at(&self, at: SlotRef, word: Word, now: u64) -> Option<Standing> {
        let slot = self.slot(at);
        let standing = Standing {
            state: word.state(),
            until: word.end_of_time(slot.cap(), slot.kept()),
            now,
            revision: slot.revision.get(),
            late: 0,
            vouched_until: self.vouched_until((!at.is_stand_in()).then_some(at.index), slot.ttl()),
        };
        // If the slot has changed hands, the standing is another session's.
        self.is_still(at).then_some(standing)
    }

    /// Returns the standing of a session that has a row: by its slot, or without a slot by the `boot_id` and the TTL of
    /// the row.
    pub fn standing(&self, home: Home, session: Uuid, boot_id: i64, ttl_ms: i32) -> Standing {
        // The time is read before the look. A process that makes the slot after the look reads a later time, so it also
        // finds the same deadline past.
        let now = clock::now();
        if let Some(standing) = self.find(home, session).and_then(|at| self.look(at)) {
            return standing;
        }
        let ttl = u64::try_from(ttl_ms).unwrap_or(0) * 1_000;
        let until = self.t0() + self.given(home, session, ttl);
        let alive = boot_id != self.boot_id() && now < until;
        let state = if alive { State::Alive } else { State::Dead };
        Standing { state, until, now, revision: 0, late: 0, vouched_until: self.vouched_until(None, ttl) }
    }
}
