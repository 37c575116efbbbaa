//! The life of sessions: slots and the rows behind them (shmem::{word, slots, map}, session::Call).

use crate::guards::Guard::*;
use crate::state::{Fact, RESOURCES, SESSIONS, Session, State, WORKER, Word};
use crate::system::System;

impl System {
    /// `standing`: whether a session lives, by its slot, or by its row if it has no slot.
    pub fn lives(&self, state: &State, s: usize) -> bool {
        let session = &state.sessions[s];
        match session.word {
            Word::Alive | Word::Frozen => true,
            Word::Free => self.lives_by_row(state, s),
            Word::Dead | Word::Gone => false,
        }
    }

    fn lives_by_row(&self, state: &State, s: usize) -> bool {
        let session = &state.sessions[s];
        session.row.is_committed() && self.is_young(session) && !self.is_kept_dead(state, s)
    }

    /// `boot_id != boot_id() && now < t0 + ttl`.
    fn is_young(&self, session: &Session) -> bool {
        session.old && !session.past && self.has(OldRowsLive)
    }

    /// Returns whether a committed or prepared transaction took something from the session before the restart.
    pub fn is_kept_dead(&self, state: &State, s: usize) -> bool {
        self.has(DeathIsWritten) && state.sessions[s].taken
            || self.has(PreparedKeepsDead) && state.transactions.iter().any(|t| t.keeps_dead.has(s))
    }

    /// Returns whether a session is alive and not ending, as a waiter (`_eligible`) and a grantee must be.
    pub fn is_eligible(&self, state: &State, s: usize) -> bool {
        let frozen = match state.sessions[s].word {
            Word::Free => self.is_ending(state, s) && self.has(PreparedEndFreezes),
            word => word == Word::Frozen,
        };
        !frozen && self.lives(state, s)
    }

    /// `slot_of`: makes the slot of a living session again if it has none.
    pub fn adopt(&self, state: &mut State, s: usize) {
        if state.sessions[s].word == Word::Free && self.lives_by_row(state, s) {
            self.enter(state, s);
        }
    }

    /// `slot_of` of a session that is kept dead: makes a dead slot. The session stays dead even if the transaction that
    /// keeps it dead fails.
    pub fn keep_dead(&self, state: &mut State, s: usize) -> bool {
        let session = &state.sessions[s];
        let found = session.word == Word::Free && session.row.is_committed() && self.is_kept_dead(state, s);
        if found {
            state.sessions[s].word = Word::Dead;
        }
        found
    }

    /// `enter`, called by `slot_of`: makes a frozen slot if a prepared transaction deletes the row.
    fn enter(&self, state: &mut State, s: usize) {
        let ending = self.is_ending(state, s) && self.has(PreparedEndFreezes);
        state.sessions[s].word = if ending { Word::Frozen } else { Word::Alive };
    }

    /// `is_ending`: returns whether a transaction deletes the row.
    pub fn is_ending(&self, state: &State, s: usize) -> bool {
        matches!(state.sessions[s].row, Fact::Deleting(_))
    }

    /// Lets the deadline pass, and takes the step of `Word::expire` at once: a process that looks would take it, and
    /// others see no difference. Without a slot, the deadline of the row passes. From here on no client trusts the session.
    pub fn expire(&self, state: &mut State, s: usize) -> bool {
        let session = &mut state.sessions[s];
        let by_row = session.old
            && !session.past
            && match session.word {
                Word::Free => session.row != Fact::Absent,
                Word::Dead | Word::Gone => session.reading,
                Word::Alive | Word::Frozen => false,
            };
        let by_slot = matches!(session.word, Word::Alive | Word::Frozen);
        if by_slot {
            session.word = Word::Dead;
        }
        if by_slot || by_row {
            (session.past, session.trusts) = (session.old, Default::default());
        }
        by_slot || by_row
    }

    /// A heartbeat without a compare-and-swap: reads a living word, and writes one later.
    pub fn beat(&self, state: &mut State, s: usize) -> bool {
        let session = &mut state.sessions[s];
        if self.has(AtomicExpiry) {
            return false;
        }
        if session.beating {
            (session.beating, session.word) = (false, Word::Alive);
            return true;
        }
        session.beating = session.word == Word::Alive;
        session.beating
    }

    /// `slot_of` in two steps. The first finds no slot and reads the row. The second makes the slot, if there is still
    /// none; the row may be gone by then.
    pub fn reads_row(&self, state: &mut State, s: usize) -> bool {
        let session = &state.sessions[s];
        if session.reading {
            if session.word == Word::Free && self.is_young(session) && !self.is_kept_dead(state, s) {
                self.enter(state, s);
                if !state.sessions[s].row.is_committed() && self.has(RowIsReadAgain) {
                    self.end(state, s, true);
                }
            }
            state.sessions[s].reading = false;
            return true;
        }
        let found = session.word == Word::Free && session.old && session.row.is_committed();
        state.sessions[s].reading |= found;
        found
    }

    /// `reclaim`: frees a tombstone that has stood for one TTL, and thus longer than an old row lives.
    pub fn reclaim(&self, state: &mut State, s: usize) -> bool {
        let session = &mut state.sessions[s];
        let over = session.word == Word::Gone && (!session.old || session.past);
        if over {
            session.word = Word::Free;
        }
        over
    }

    /// `Word::freeze`.
    pub fn freeze(&self, state: &mut State, s: usize) {
        let session = &mut state.sessions[s];
        if session.word == Word::Alive {
            session.word = Word::Frozen;
        }
    }

    /// `Word::thaw`.
    pub fn thaw(&self, state: &mut State, s: usize) -> bool {
        let frozen = state.sessions[s].word == Word::Frozen;
        if frozen {
            state.sessions[s].word = Word::Alive;
        }
        frozen
    }

    /// `Word::end`, and `Word::bury` of a dead session.
    pub fn end(&self, state: &mut State, s: usize, gone: bool) {
        let tombstone = if self.has(Tombstone) { Word::Gone } else { Word::Free };
        let session = &mut state.sessions[s];
        session.word = match session.word {
            Word::Alive | Word::Frozen if !gone => Word::Dead,
            Word::Alive | Word::Frozen | Word::Dead if gone => tombstone,
            other => other,
        };
    }

    /// `erase`: only the transaction that opened the session has ever seen it.
    pub fn erase(&self, state: &mut State, s: usize) {
        let session = &mut state.sessions[s];
        session.word = match session.word {
            Word::Alive | Word::Frozen => Word::Free,
            Word::Dead => Word::Gone,
            other => other,
        };
    }

    /// `renew`, or `already_held`: tells a holder that it holds the lease, and for how long to trust that. In the model
    /// each holder has always just been told.
    pub fn renew(&self, state: &mut State) {
        for (s, r) in (0..SESSIONS).flat_map(|s| (0..RESOURCES).map(move |r| (s, r))) {
            if state.leases[r].row.is_some_and(|row| row.is_of(s))
                && state.sessions[s].row.is_committed()
                && self.is_eligible(state, s)
            {
                state.sessions[s].trusts.add(r);
                let by = |by: u8| state.transactions[usize::from(by)].is_prepared();
                state.broken.extended |= matches!(state.sessions[s].row, Fact::Deleting(x) if by(x));
            }
        }
    }

    /// A crash: shared memory and open transactions are lost. Committed and prepared ones stay.
    pub fn crash(&self, state: &mut State) {
        for x in 0..=WORKER {
            if !state.transactions[x].is_prepared() {
                self.settle_rows(state, x, false);
                state.transactions[x] = Default::default();
            } else {
                state.transactions[x].watched = false;
            }
        }
        for session in &mut state.sessions {
            let (known, places, trusts) = (session.row != Fact::Absent, session.places, session.trusts);
            let (taken, dead) = (session.taken, session.dead && (session.taken || !known));
            *session = Session { row: session.row, old: known, dead, taken, places, trusts, ..Session::default() };
        }
        state.ring = Default::default();
        (state.rescan, state.boot, state.ended_prepared) = (false, true, false);
        state.lost = !self.has(FencesAreRaised);
    }
}
