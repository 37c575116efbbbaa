//! The end of a transaction (seam::end, and PostgreSQL's order of its steps): freeze, become visible, tell, unlock.

use crate::guards::Guard::*;
use crate::set::Set;
use crate::state::{Fact, Phase, RESOURCES, State, Transaction, WORKER, Word};
use crate::system::System;

impl System {
    /// Pre-commit and pre-prepare: freezes the sessions that the transaction ends.
    pub fn freeze_ended(&self, state: &mut State, x: usize) -> bool {
        let transaction = state.transactions[x];
        let due = matches!(transaction.phase, Phase::Open | Phase::Passes) && self.is_freeze_due(state, x);
        if due {
            if !self.has(PostedOnceVisible) {
                self.post_noted(state, x);
            }
            transaction.ended.members().for_each(|s| self.freeze(state, s));
            state.transactions[x].phase = Phase::Frozen;
        }
        due
    }

    /// Returns whether the transaction must do something before its commit.
    fn is_freeze_due(&self, state: &State, x: usize) -> bool {
        self.ends_somebody_alive(state, x) || x != WORKER && !self.has(PostedOnceVisible)
    }

    /// Returns whether the transaction ends a living session. Dead sessions are not frozen.
    fn ends_somebody_alive(&self, state: &State, x: usize) -> bool {
        state.transactions[x].ended.members().any(|s| state.sessions[s].word == Word::Alive)
    }

    /// COMMIT, or the commit of a prepared transaction: makes its changes visible.
    pub fn commit(&self, state: &mut State, x: usize) -> bool {
        let transaction = state.transactions[x];
        let ready = match transaction.phase {
            Phase::Open | Phase::Passes => !self.is_freeze_due(state, x),
            Phase::Frozen => true,
            _ => false,
        };
        if ready {
            self.conclude(state, x, true);
        }
        ready
    }

    /// ROLLBACK, an ERROR, or the end of the process: possible at any time before the commit.
    pub fn abort(&self, state: &mut State, x: usize) -> bool {
        let transaction = &state.transactions[x];
        let open = transaction.is_open() && !transaction.is_prepared();
        if open {
            self.conclude(state, x, false);
        }
        open
    }

    fn conclude(&self, state: &mut State, x: usize, committed: bool) {
        self.settle_rows(state, x, committed);
        state.transactions[x].phase = Phase::Ended { committed };
        state.transactions[x].took_from = Set::default();
        let transaction = &mut state.transactions[x];
        if !transaction.tells(x, committed) {
            self.forget_notes(state, x);
        }
    }

    /// Forgets the notes of a transaction that has told everything. Only its locks remain, if it has any.
    fn forget_notes(&self, state: &mut State, x: usize) {
        let old = state.transactions[x];
        state.transactions[x] = Transaction {
            phase: Phase::Told,
            me: if old.fences { old.me } else { 0 },
            fenced: old.fenced,
            excludes: old.excludes,
            grants: old.grants,
            buries: old.buries,
            fences: old.fences,
            closes: old.closes,
            keeps_dead: old.keeps_dead,
            ..Transaction::default()
        };
        if !old.has_locks() {
            self.unlock(state, x);
        }
    }

    /// PREPARE TRANSACTION: forgets the notes, keeps rows and locks, and has the launcher watch for the end.
    pub fn prepare(&self, state: &mut State, x: usize) -> bool {
        let old = state.transactions[x];
        let ready = old.phase == Phase::Open && !self.is_freeze_due(state, x) || old.phase == Phase::Frozen;
        if ready && x != WORKER {
            let keeps_dead = if self.has(PreparedKeepsDead) { old.took_from } else { Set::default() };
            state.transactions[x] = Transaction {
                phase: Phase::Prepared,
                keeps_dead,
                watched: self.has(PrepareIsWatched),
                post: Set::default(),
                opened: Set::default(),
                ended: Set::default(),
                gone: Set::default(),
                ..old
            };
        }
        ready && x != WORKER
    }

    /// COMMIT PREPARED and ROLLBACK PREPARED, which call none of our callbacks.
    pub fn end_prepared(&self, state: &mut State, x: usize, committed: bool) -> bool {
        let prepared = state.transactions[x].is_prepared();
        if prepared {
            state.ended_prepared |= state.transactions[x].watched;
            self.settle_rows(state, x, committed);
            self.forget_notes(state, x);
        }
        prepared
    }

    /// `settle`: tells shared memory of the end.
    pub fn settle(&self, state: &mut State, x: usize) -> bool {
        let Phase::Ended { committed } = state.transactions[x].phase else { return false };
        if committed {
            self.settle_committed(state, x)
        } else {
            self.undo(state, x)
        }
        self.forget_notes(state, x);
        true
    }

    fn settle_committed(&self, state: &mut State, x: usize) {
        let notes = state.transactions[x];
        for s in notes.ended.members() {
            if notes.opened.has(s) && notes.gone.has(s) {
                self.erase(state, s);
            } else {
                self.end(state, s, notes.gone.has(s));
            }
        }
        for s in notes.opened.members() {
            state.rescan |= !self.lives(state, s) && self.has(LateOpeningRescans);
        }
        self.post_fenced(state, x);
        // The worker has judged everything that it commits.
        if x != WORKER && self.has(CommitPosts) && self.has(PostedOnceVisible) {
            self.post_noted(state, x);
        }
    }

    fn undo(&self, state: &mut State, x: usize) {
        let notes = state.transactions[x];
        notes.opened.members().for_each(|s| self.erase(state, s));
        for s in notes.ended.members() {
            state.rescan |= self.thaw(state, s) && self.has(ThawRescans);
        }
        self.post_fenced(state, x);
        if self.has(AbortPosts) {
            self.post_noted(state, x);
        }
        if self.has(JudgedIsPutBack) {
            self.post_all(state, notes.judged);
        }
        if self.has(FlagsAreSetAgain) {
            state.rescan |= notes.rescans;
            state.boot |= notes.boots;
        }
    }

    fn post_noted(&self, state: &mut State, x: usize) {
        self.post_all(state, state.transactions[x].post);
    }

    /// `post_if_left`: posts each lease that the transaction has fenced, if its session is dead now. While the
    /// transaction was open, no session could take the lease over.
    fn post_fenced(&self, state: &mut State, x: usize) {
        let notes = state.transactions[x];
        for r in 0..RESOURCES {
            if notes.fenced[r] != 0 && !self.lives(state, usize::from(notes.me)) {
                self.post(state, r);
            }
        }
    }

    fn post_all(&self, state: &mut State, resources: Set) {
        resources.members().for_each(|r| self.post(state, r));
    }

    /// `post`: puts a resource into the ring. If the ring is full, the worker must rescan the database.
    pub fn post(&self, state: &mut State, r: usize) {
        if (0..RESOURCES).filter(|r| state.ring.has(*r)).count() < self.ring_size || state.ring.has(r) {
            state.ring.add(r);
        } else {
            state.rescan |= self.has(FullRingRescans);
        }
    }

    /// Releases the locks, last of all, after the callbacks.
    pub fn unlock(&self, state: &mut State, x: usize) -> bool {
        let told = state.transactions[x].phase == Phase::Told;
        if told {
            state.transactions[x] = Transaction::default();
        }
        told
    }

    /// Settles the rows that a transaction has written or locked.
    pub fn settle_rows(&self, state: &mut State, x: usize, committed: bool) {
        for r in 0..RESOURCES {
            let lease = &mut state.leases[r];
            if !lease.is_mine(x) {
                continue;
            }
            let (old, new) = (lease.row, lease.new.take());
            lease.by = None;
            if let Some(new) = new.filter(|_| committed) {
                lease.row = Some(new);
                // A session no longer trusts a lease that it has released itself.
                let from = old.and_then(|old| old.holder).filter(|from| new.holder != Some(*from));
                if let Some(s) = from.filter(|from| x != WORKER && *from == state.transactions[x].me) {
                    state.sessions[usize::from(s)].trusts.remove(r);
                }
                let granted = old != Some(new) && new.holder.is_some();
                state.broken.fence_fell |= granted && old.is_some_and(|old| new.fence <= old.fence);
            }
        }
        for session in &mut state.sessions {
            let stood = session.row.is_committed();
            session.row.settle(x, committed);
            if stood && session.row == Fact::Absent && x != WORKER {
                session.trusts = Set::default();
            }
            for place in &mut session.places {
                place.fact.settle(x, committed);
            }
            if session.opened_by == Some(x as u8) {
                session.opened_by = None;
            }
        }
        for (s, session) in state.sessions.iter_mut().enumerate() {
            session.taken |= committed && state.transactions[x].took_from.has(s);
            session.taken &= session.row.is_committed();
        }
    }
}
