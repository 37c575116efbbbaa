//! A pass of the worker (sweep, worker::{launcher, database}).
//!
//! A pass is one transaction. It takes the dirty resources and dead sessions, looks through the database if a flag asks
//! for that, judges each resource, and sweeps the dead. Steps of clients come in between. The pass may fail at any
//! step, as when the worker is terminated. A stopped worker takes no step for a while.

use crate::guards::Guard::*;
use crate::handover::HandOver;
use crate::state::{Phase, RESOURCES, SESSIONS, State, WORKER, Word};
use crate::system::System;

impl System {
    /// `watch_prepared` of the launcher: notes that a prepared transaction has ended.
    pub fn watch_prepared(&self, state: &mut State) -> bool {
        state.rescan |= state.ended_prepared;
        std::mem::take(&mut state.ended_prepared)
    }

    /// `each`, `dead_sessions`, `take_flags`, `take_dirty`: takes the dead sessions, the dirty resources and the flags.
    pub fn take_dirty(&self, state: &mut State) -> bool {
        if state.transactions[WORKER].phase != Phase::Idle {
            return false;
        }
        let transaction = &mut state.transactions[WORKER];
        for s in 0..SESSIONS {
            if state.sessions[s].word == Word::Dead {
                transaction.dead.add(s);
            }
        }
        transaction.judged = std::mem::take(&mut state.ring);
        transaction.todo = transaction.judged;
        transaction.rescans = std::mem::take(&mut state.rescan);
        transaction.boots = std::mem::take(&mut state.boot);
        transaction.phase = Phase::Passes;
        let looks_through = transaction.rescans || transaction.boots;
        let due = looks_through || !transaction.judged.is_empty() || !transaction.dead.is_empty();
        if looks_through {
            self.look_through(state);
        }
        due
    }

    /// `look_through`: finds prepared transactions, settles the sessions, and has every resource with a waiter judged.
    fn look_through(&self, state: &mut State) {
        if state.transactions[WORKER].boots && self.has(BootFindsPrepared) {
            for transaction in &mut state.transactions {
                transaction.watched |= transaction.is_prepared();
            }
        }
        for s in 0..SESSIONS {
            self.settle_session(state, s);
        }
        for r in 0..RESOURCES {
            if state.sessions.iter().any(|session| session.places[r].fact.seen_by(WORKER)) {
                state.transactions[WORKER].todo.add(r);
            }
        }
    }

    /// `settle_sessions`: makes slot and row agree again.
    fn settle_session(&self, state: &mut State, s: usize) {
        if state.sessions[s].row.seen_by(WORKER) {
            self.adopt(state, s);
            if state.sessions[s].word == Word::Frozen && self.has(RescanThaws) && !self.is_ending(state, s) {
                self.thaw(state, s);
            }
        } else {
            self.end_orphan(state, s);
        }
        // A session that is dead by its row gets a dead slot. So does a stray, which has a lease or place but no row. A
        // tombstone stays as it is.
        let session = &state.sessions[s];
        let row = session.row.seen_by(WORKER);
        let has = |row: crate::state::Row| row.is_of(s);
        let stray = !row
            && (state.leases.iter().any(|lease| lease.seen_by(WORKER).is_some_and(has))
                || session.places.iter().any(|place| place.fact.seen_by(WORKER)));
        if (row || stray) && matches!(session.word, Word::Free | Word::Gone) {
            state.transactions[WORKER].dead.add(s);
            if state.sessions[s].word == Word::Free {
                state.sessions[s].word = Word::Dead;
            } else {
                state.rescan |= self.has(StrayIsRetried);
            }
        }
    }

    /// `end_orphans`: ends a slot without a row, once the transaction that opened the session has ended.
    fn end_orphan(&self, state: &mut State, s: usize) {
        let session = &state.sessions[s];
        let lives = matches!(session.word, Word::Alive | Word::Frozen);
        if lives && session.opened_by.is_none() && self.has(RescanEndsOrphans) {
            state.transactions[WORKER].ended.add(s);
        }
    }

    /// `judge_dirty`, one resource: hands it over, tries it again later, or deletes its holder's place in line.
    pub fn judge(&self, state: &mut State, r: usize) -> bool {
        if state.transactions[WORKER].phase != Phase::Passes || !state.transactions[WORKER].todo.has(r) {
            return false;
        }
        state.transactions[WORKER].todo.remove(r);
        match self.hand_over(state, WORKER, r, false) {
            HandOver::Busy if self.has(BusyIsRetried) => self.post(state, r),
            HandOver::Held => self.leave_own(state, r),
            _ => (),
        }
        true
    }

    /// `leave_own`: deletes the place of a living holder in the queue of the resource that it holds.
    fn leave_own(&self, state: &mut State, r: usize) {
        let lease = &mut state.leases[r];
        let Some(holder) = lease.seen_by(WORKER).and_then(|row| row.holder) else { return };
        let place = &mut state.sessions[usize::from(holder)].places[r].fact;
        if place.seen_by(WORKER) && !lease.is_taken_from(WORKER) {
            lease.by = Some(WORKER as u8);
            if !place.is_taken_from(WORKER) {
                place.delete(WORKER);
            }
        }
    }

    /// `dissolve` and `bury`: hands over or frees the leases of dead sessions, deletes their places, and their rows
    /// last.
    pub fn sweep(&self, state: &mut State) -> bool {
        let transaction = &state.transactions[WORKER];
        let ready = transaction.phase == Phase::Passes && transaction.todo.is_empty() && !transaction.dead.is_empty();
        if ready {
            for s in std::mem::take(&mut state.transactions[WORKER].dead).members() {
                for r in 0..RESOURCES {
                    self.dissolve(state, s, r);
                }
                self.bury(state, s);
                if state.sessions[s].row.seen_by(WORKER) {
                    state.transactions[WORKER].took_from.add(s);
                }
            }
        }
        ready
    }

    fn dissolve(&self, state: &mut State, s: usize, r: usize) {
        let holds = |state: &State| state.leases[r].seen_by(WORKER).filter(|row| row.is_of(s));
        let waited = state.sessions.iter().any(|other| other.places[r].fact.seen_by(WORKER));
        let busy = holds(state).is_some() && waited && self.hand_over(state, WORKER, r, false) == HandOver::Busy;
        if let Some(row) = holds(state)
            && !(busy && self.has(BusyStaysDead))
            && !state.leases[r].is_taken_from(WORKER)
            && (self.is_unfenced(state, WORKER, r, row.fence) || !self.has(TakeOverTestsFence))
        {
            self.free(state, WORKER, r);
        }
        let place = &mut state.sessions[s].places[r].fact;
        if place.seen_by(WORKER) && !place.is_taken_from(WORKER) {
            place.delete(WORKER);
            state.transactions[WORKER].post.add(r);
        }
    }

    /// Deletes the session's row under G, held exclusively, if it has no lease and no place.
    fn bury(&self, state: &mut State, s: usize) {
        let has = |row: crate::state::Row| row.is_of(s);
        let clean = !state.leases.iter().any(|lease| lease.seen_by(WORKER).is_some_and(has))
            && !state.sessions[s].places.iter().any(|place| place.fact.seen_by(WORKER));
        let guarded = self.has(GranteeIsLocked);
        let row = state.sessions[s].row;
        let taken = row.seen_by(WORKER) && row.is_taken_from(WORKER);
        if !clean || guarded && !self.is_alone(state, WORKER, s) || taken {
            return;
        }
        let transaction = &mut state.transactions[WORKER];
        if guarded {
            transaction.buries.add(s);
        }
        transaction.ended.add(s);
        transaction.gone.add(s);
        if row.seen_by(WORKER) {
            state.sessions[s].row.delete(WORKER);
        }
    }

    /// Returns whether the pass has done everything and can only commit.
    pub fn is_done(&self, state: &State) -> bool {
        let transaction = &state.transactions[WORKER];
        transaction.phase == Phase::Passes && transaction.todo.is_empty() && transaction.dead.is_empty()
    }
}
