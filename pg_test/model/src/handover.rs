//! The first in line, and the grant (queue, handover, grant).

use crate::guards::Guard::*;
use crate::set::Set;
use crate::state::{Fact, Lease, Phase, Row, SESSIONS, State};
use crate::system::System;

/// The outcome of a hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    Granted,
    /// A session waits and no living session holds the lease, but another transaction is in the way.
    Busy,
    /// A living session holds the lease.
    Held,
    /// No session waits.
    Nothing,
}

impl System {
    /// `first_in_line`, with some sessions left out.
    pub fn first_in_line(&self, state: &State, x: usize, r: usize, without: Set) -> Option<usize> {
        let waits = |s: &usize| {
            let session = &state.sessions[*s];
            session.places[r].fact.seen_by(x)
                && session.row.seen_by(x)
                && !without.has(*s)
                && self.is_eligible(state, *s)
        };
        (0..SESSIONS).filter(waits).min_by_key(|s| state.sessions[*s].places[r].number)
    }

    /// `Holders::of`: returns the holder in a row, if it lives.
    pub fn living_holder(&self, state: &State, x: usize, row: Row) -> Option<usize> {
        let holder = usize::from(row.holder?);
        (state.sessions[holder].row.seen_by(x) && self.lives(state, holder)).then_some(holder)
    }

    /// Returns whether no other transaction has F of a fence.
    pub fn is_unfenced(&self, state: &State, x: usize, r: usize, fence: u8) -> bool {
        let has =
            |y: usize| y != x && [state.transactions[y].fenced[r], state.transactions[y].excludes[r]].contains(&fence);
        !(0..state.transactions.len()).any(has)
    }

    /// `hand_over` of one resource. `letting_go`: the transaction releases it, and has excluded fenced transactions.
    pub fn hand_over(&self, state: &mut State, x: usize, r: usize, letting_go: bool) -> HandOver {
        let mut skipped = Set::default();
        while let Some(first) = self.first_in_line(state, x, r, skipped) {
            let seen = match free(self, state, x, r, letting_go) {
                Ok(seen) => seen,
                Err(outcome) => return outcome,
            };
            if self.admit(state, x, first) {
                let served =
                    state.sessions[first].places[r].fact.seen_by(x) && self.claim(state, x, r, first, seen, letting_go);
                return if served { HandOver::Granted } else { HandOver::Busy };
            }
            skipped.add(first);
        }
        if skipped.is_empty() { HandOver::Nothing } else { HandOver::Busy }
    }

    /// `grantee`, `admit`: takes G in share mode, then looks at the session's row and slot.
    pub fn admit(&self, state: &mut State, x: usize, s: usize) -> bool {
        if self.has(GranteeIsLocked) && !self.lock_grantee(state, x, s) {
            return false;
        }
        let ready = state.sessions[s].row.seen_by(x) && self.is_eligible(state, s) || !self.has(GranteeIsReadAgain);
        if ready {
            self.adopt(state, s);
        }
        ready
    }

    /// Takes G in share mode, without waiting.
    pub fn lock_grantee(&self, state: &mut State, x: usize, s: usize) -> bool {
        let had = !state.transactions.iter().enumerate().any(|(y, other)| y != x && other.buries.has(s));
        if had {
            state.transactions[x].grants.add(s);
        }
        had
    }

    /// `claim` and `write`: locks the rows of the grant, if no transaction is in the way, and gives the grantee its
    /// fence.
    pub fn claim(&self, state: &mut State, x: usize, r: usize, s: usize, seen: Option<Row>, released: bool) -> bool {
        let held = seen.filter(|row| row.holder.is_some());
        let tested = !released && self.has(TakeOverTestsFence);
        if tested && held.is_some_and(|row| !self.is_unfenced(state, x, r, row.fence)) {
            return false;
        }
        let (lease, place) = (state.leases[r], state.sessions[s].places[r].fact);
        if place.seen_by(x) && place.is_taken_from(x) || !self.is_had(state, x, &lease, seen) {
            return false;
        }
        let early = match state.transactions[x].phase {
            Phase::Wants { fence, .. } if !self.has(FenceIsDrawnLast) => Some(fence),
            _ => None,
        };
        let fence = early.unwrap_or_else(|| self.draw(state, r));
        state.leases[r].write(x, Row { holder: Some(s as u8), fence });
        if place.seen_by(x) {
            state.sessions[s].places[r].fact.delete(x);
        }
        if let Some(from) = held.and_then(|row| row.holder).filter(|_| !released) {
            state.transactions[x].took_from.add(usize::from(from));
        }
        state.transactions[x].post.add(r);
        true
    }

    /// Locks the row that was looked at. If there was none, makes sure under the stripe of its name that there still is
    /// none.
    fn is_had(&self, state: &mut State, x: usize, lease: &Lease, seen: Option<Row>) -> bool {
        let same = lease.seen_by(x) == seen;
        match seen {
            Some(_) => !lease.is_taken_from(x) && (same || !self.has(SeenRowIsClaimed)),
            None if self.has(NameIsGuarded) => same && !lease.is_in_flight(x),
            None => {
                // The insert waits for the other transaction's insert, and then fails on its key.
                state.broken.waited |= lease.is_in_flight(x);
                same && !lease.is_in_flight(x)
            }
        }
    }

    /// `nextval`: draws a fence greater than all before. After a start, fences are raised above all history first.
    pub fn draw(&self, state: &mut State, r: usize) -> u8 {
        state.broken.fence_fell |= state.lost;
        1 + fences(state, r).max().unwrap_or(0)
    }

    /// `free`: takes a lease from its holder, which is this transaction's session or dead.
    pub fn free(&self, state: &mut State, x: usize, r: usize) {
        if let Some(row) = state.leases[r].seen_by(x) {
            state.leases[r].write(x, Row { holder: None, ..row });
            state.transactions[x].post.add(r);
        }
    }

    /// `take_place`: the session then has a place, even if it had one before.
    pub fn take_place(&self, state: &mut State, x: usize, r: usize, s: usize) {
        let last = state.sessions.iter().map(|session| session.places[r].number).max().unwrap_or(0);
        let place = &mut state.sessions[s].places[r];
        if place.fact == Fact::Absent {
            (place.fact, place.number) = (Fact::Inserting(x as u8), last + 1);
        }
        state.transactions[x].post.add(r);
    }
}

/// `free_among`: returns the row of a lease that no living session holds, or why the lease is not free.
fn free(system: &System, state: &State, x: usize, r: usize, letting_go: bool) -> Result<Option<Row>, HandOver> {
    let lease = &state.leases[r];
    if lease.is_in_flight(x) {
        return Err(HandOver::Busy);
    }
    let seen = lease.seen_by(x);
    match seen.and_then(|row| system.living_holder(state, x, row)) {
        Some(_) if !letting_go => Err(HandOver::Held),
        _ => Ok(seen),
    }
}

/// Returns the fences of a resource that some part of the state still knows.
pub fn fences(state: &State, r: usize) -> impl Iterator<Item = u8> {
    let lease = state.leases[r];
    let of_lease = [lease.row, lease.new].into_iter().flatten().map(|row| row.fence);
    let of_transactions = state.transactions.into_iter().flat_map(move |t| {
        let seen = match t.phase {
            Phase::Wants { resource, seen, fence } if usize::from(resource) == r => {
                [seen.map_or(0, |row| row.fence), fence]
            }
            Phase::Checks { resource, fence } if usize::from(resource) == r => [fence, 0],
            _ => [0, 0],
        };
        [t.fenced[r], t.excludes[r], seen[0], seen[1]]
    });
    of_lease.chain(of_transactions).filter(|fence| *fence > 0)
}
