//! The verbs of clients (lease::{acquire, release, fence, line}, ending::verbs). A verb that looks first and locks
//! later takes two steps.

use crate::guards::Guard::*;
use crate::handover::HandOver;
use crate::state::{Fact, Phase, RESOURCES, Row, Session, State, Word};
use crate::system::System;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    Open,
    Acquire(usize),
    Release(usize),
    Close,
    FenceCheck(usize),
    Cancel(usize),
    /// The end of a session_wait: `judge_places`.
    Wait,
}

impl System {
    /// Takes the first step of a verb. Returns false if the verb has nothing to do, or must wait.
    pub fn call(&self, state: &mut State, x: usize, s: usize, verb: Verb) -> bool {
        let transaction = &state.transactions[x];
        if transaction.ended.has(s) {
            return false;
        }
        if verb != Verb::Open && !self.may_act(state, x, s) {
            return false;
        }
        self.adopt(state, s);
        let transaction = &mut state.transactions[x];
        (transaction.phase, transaction.me) = (Phase::Open, s as u8);
        transaction.verbs += 1;
        match verb {
            Verb::Open => self.open(state, x, s),
            Verb::Acquire(r) => self.acquire(state, x, r),
            Verb::Release(r) => self.release(state, x, r),
            Verb::Close => self.close(state, x),
            Verb::FenceCheck(r) => self.find_fence(state, x, r),
            Verb::Cancel(r) => self.cancel(state, x, r),
            Verb::Wait => self.wait(state, x),
        }
    }

    /// Returns whether a session may call verbs: it lives, and the caller knows of it.
    fn may_act(&self, state: &State, x: usize, s: usize) -> bool {
        let session = &state.sessions[s];
        self.lives(state, s) && (session.row.seen_by(x) || session.row.is_committed())
    }

    fn open(&self, state: &mut State, x: usize, s: usize) -> bool {
        let unknown = self.is_unknown(state, s);
        if unknown {
            let (row, by) = (Fact::Inserting(x as u8), x as u8);
            state.sessions[s] = Session { row, word: Word::Alive, opened_by: Some(by), ..Session::default() };
            state.transactions[x].opened.add(s);
        }
        unknown
    }

    /// Returns whether nothing names the session any more. Its number may then be that of a new session.
    fn is_unknown(&self, state: &State, s: usize) -> bool {
        let rows = state.leases.iter().flat_map(|lease| [lease.row, lease.new]).flatten();
        let named = |t: &crate::state::Transaction| {
            let sets = [t.opened, t.ended, t.grants, t.buries, t.closes, t.dead, t.took_from, t.keeps_dead];
            sets.iter().any(|set| set.has(s))
        };
        let session = &state.sessions[s];
        session.row == Fact::Absent
            && session.word == Word::Free
            && !session.reading
            && session.places.iter().all(|place| place.fact == Fact::Absent)
            && !rows.into_iter().any(|row| row.is_of(s))
            && !state.transactions.iter().any(named)
    }

    /// `acquire_batch`: looks at the lease, and asks for a place if the acquire is refused.
    fn acquire(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        let seen = state.leases[r].seen_by(x);
        let holder = seen.and_then(|row| self.living_holder(state, x, row));
        if state.leases[r].is_in_flight(x) || holder.is_some_and(|holder| holder != me) {
            return self.line_up(state, x, r);
        }
        let fence = if self.has(FenceIsDrawnLast) { 0 } else { self.draw(state, r) };
        state.transactions[x].phase = Phase::Wants { resource: r as u8, seen, fence };
        holder.is_none()
    }

    /// `line_up`: returns false if the session has a place already and nothing is noted.
    fn line_up(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        if self.has(QueueingIsLocked) && !self.lock_grantee(state, x, me) {
            return false;
        }
        let entitled = state.sessions[me].row.seen_by(x);
        if entitled {
            self.take_place(state, x, r, me);
        }
        entitled
    }

    /// `take`: grants the lease if its row is still the one that was seen and no other session is first in line.
    pub fn take(&self, state: &mut State, x: usize) -> bool {
        let Phase::Wants { resource, seen, .. } = state.transactions[x].phase else { return false };
        let (r, me) = (usize::from(resource), usize::from(state.transactions[x].me));
        let admitted = self.admit(state, x, me);
        let first = self.first_in_line(state, x, r, Default::default());
        let barging = first.is_some_and(|first| first != me) && self.has(FirstComesFirst);
        let granted = admitted && !barging && self.claim(state, x, r, me, seen, false);
        state.broken.jumped |= granted && first.is_some_and(|first| first != me);
        if admitted && !granted {
            state.transactions[x].post.add(r);
            self.line_up(state, x, r);
        }
        state.transactions[x].phase = Phase::Open;
        true
    }

    /// `release_seat`: takes F, and waits for it.
    fn release(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        let Some(row) = state.leases[r].seen_by(x).filter(|row| row.is_of(me)) else { return false };
        if self.has(ReleaseExcludesFenced) {
            if !self.is_unfenced(state, x, r, row.fence) {
                return false;
            }
            state.transactions[x].excludes[r] = row.fence;
        }
        state.transactions[x].phase = Phase::Releases { resource: r as u8 };
        true
    }

    /// `release`: waits for the row, looks again, and hands over or frees the lease.
    pub fn let_go(&self, state: &mut State, x: usize) -> bool {
        let Phase::Releases { resource } = state.transactions[x].phase else { return false };
        let (r, me) = (usize::from(resource), usize::from(state.transactions[x].me));
        if state.leases[r].is_taken_from(x) {
            return false;
        }
        state.transactions[x].phase = Phase::Open;
        let excluded = state.transactions[x].excludes[r];
        let still = |row: &Row| row.is_of(me) && (row.fence == excluded || excluded == 0);
        if state.leases[r].seen_by(x).is_some_and(|row| still(&row)) && self.lives(state, me) {
            self.give_away(state, x, r);
        }
        true
    }

    /// Hands over or frees a lease that its holder releases. Returns whether another transaction has locked a waiter.
    fn give_away(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        state.transactions[x].fenced[r] = 0;
        state.sessions[me].trusts.remove(r);
        let outcome = self.hand_over(state, x, r, true);
        if outcome != HandOver::Granted {
            self.free(state, x, r);
        }
        outcome == HandOver::Busy
    }

    /// `session_close`: takes S, and waits for it.
    fn close(&self, state: &mut State, x: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        if self.has(CloseExcludesFenced) {
            let fenced = |t: &crate::state::Transaction| t.fences && usize::from(t.me) == me || t.closes.has(me);
            if state.transactions.iter().enumerate().any(|(y, other)| y != x && fenced(other)) {
                return false;
            }
            state.transactions[x].closes.add(me);
        }
        state.transactions[x].phase = Phase::Closes;
        true
    }

    /// `session::end`: waits for the session's row and deletes it. Takes away as many of its leases and places as it
    /// can (`dissolve`).
    pub fn end_session(&self, state: &mut State, x: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        if state.transactions[x].phase != Phase::Closes || state.sessions[me].row.is_taken_from(x) {
            return false;
        }
        state.transactions[x].phase = Phase::Open;
        if !self.lives(state, me) || !state.sessions[me].row.seen_by(x) {
            return true;
        }
        let alone = self.is_alone(state, x, me);
        if alone && self.has(GranteeIsLocked) {
            state.transactions[x].buries.add(me);
        }
        state.sessions[me].row.delete(x);
        state.sessions[me].trusts = Default::default();
        let mut left = false;
        for r in 0..RESOURCES {
            if state.leases[r].seen_by(x).is_some_and(|row| row.is_of(me)) {
                left |= state.leases[r].is_taken_from(x) || self.give_away(state, x, r);
            }
            let place = &mut state.sessions[me].places[r].fact;
            if place.seen_by(x) {
                left |= place.is_taken_from(x);
                if !place.is_taken_from(x) {
                    place.delete(x);
                    state.transactions[x].post.add(r);
                }
            }
        }
        state.transactions[x].ended.add(me);
        if alone && !left {
            state.transactions[x].gone.add(me);
        }
        true
    }

    /// Returns whether the transaction can take G of a session exclusively.
    pub fn is_alone(&self, state: &State, x: usize, s: usize) -> bool {
        let has = |t: &crate::state::Transaction| t.grants.has(s) || t.buries.has(s);
        !state.transactions.iter().enumerate().any(|(y, other)| y != x && has(other))
    }

    /// `fence_check`: finds out which lease has the fence, and locks nothing yet.
    fn find_fence(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        let Some(row) = state.leases[r].seen_by(x).filter(|row| row.is_of(me)) else { return false };
        state.transactions[x].phase = Phase::Checks { resource: r as u8, fence: row.fence };
        state.transactions[x].fenced[r] != row.fence
    }

    /// `check`: takes S and F in share mode, and then judges. If it raises, its savepoint is rolled back.
    pub fn check(&self, state: &mut State, x: usize) -> bool {
        let Phase::Checks { resource, fence } = state.transactions[x].phase else { return false };
        let (r, me) = (usize::from(resource), usize::from(state.transactions[x].me));
        let excluded = |t: &crate::state::Transaction| t.closes.has(me) || t.excludes[r] == fence;
        let had = !state.transactions.iter().enumerate().any(|(y, other)| y != x && excluded(other));
        let row = Row { holder: Some(me as u8), fence };
        let current = state.leases[r].seen_by(x) == Some(row) && self.is_eligible(state, me);
        if had && (current || !self.has(FenceIsJudgedLocked)) {
            state.transactions[x].fences = true;
            state.transactions[x].fenced[r] = fence;
        }
        state.transactions[x].phase = Phase::Open;
        true
    }

    /// `lease_cancel`: waits for a transaction that is granting to the session.
    fn cancel(&self, state: &mut State, x: usize, r: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        let place = &mut state.sessions[me].places[r].fact;
        let mine = place.seen_by(x) && !place.is_taken_from(x);
        if mine {
            place.delete(x);
            state.transactions[x].post.add(r);
        }
        mine
    }

    /// `judge_places`: serves the waiter even if the worker is stopped.
    fn wait(&self, state: &mut State, x: usize) -> bool {
        let me = usize::from(state.transactions[x].me);
        let mut served = false;
        for r in 0..RESOURCES {
            if state.sessions[me].places[r].fact.seen_by(x) {
                served |= self.hand_over(state, x, r, false) == HandOver::Granted;
            }
        }
        served
    }
}
