//! The steps, with the names that the code has for them.

use super::state::{
    CLIENTS, FORMER, Holder, How, Life, Phase, Row, SESSIONS, SLOTS, SUCCESSOR, Slot, State, Transaction,
};
use super::{Step, Succession};
use crate::guards::Guard::*;
use crate::set::Set;

impl Succession {
    /// `look_at_permits`: returns false if the acquire is refused.
    fn look(&self, state: &mut State, x: usize, s: usize, slot: usize) -> bool {
        let row = state.slots[slot].row;
        if state.is_locked(x, slot) || (0..SLOTS).any(|other| state.is_of(other, s)) {
            return false;
        }
        let in_grace = |slot: &usize| {
            let of = matches!(state.slots[*slot].row.holder, Holder::Grace { of, .. } if usize::from(of) == s);
            of && state.lives(*slot)
        };
        let how = match ((0..SLOTS).find(in_grace), row.holder) {
            (Some(own), Holder::Grace { fencer, .. }) if own == slot => {
                let let_go = usize::from(fencer) == s || !self.has(SuccessorGetsNewFence);
                if let_go { How::TakenBack } else { How::TakenOver }
            }
            // A session with a permit in grace may take that one, and no other.
            (Some(_), _) => return false,
            (None, _) => How::Granted,
        };
        let (mut gone, mut lapsed) = (Set::default(), Set::default());
        if how == How::Granted {
            let is_taken =
                |other: &usize| state.lives(*other) || state.is_locked(x, *other) || state.is_fenced(x, *other);
            let mut taken = Set::default();
            (0..SLOTS).filter(is_taken).for_each(|other| taken.add(other));
            let room = taken.members().count() < usize::from(state.permits);
            if taken.has(slot) || slot >= usize::from(state.permits) || !room {
                return false;
            }
            let held = |slot: usize| state.slots[slot].row.holder != Holder::Nobody || state.is_locked(x, slot);
            let beyond = (usize::from(state.permits)..SLOTS).any(held);
            if beyond && self.has(CountIsLocked) {
                if state.transactions.iter().any(|other| other.declaration) {
                    return false;
                }
                state.transactions[x].declaration = true;
            }
            for other in (0..SLOTS).filter(|other| beyond && !taken.has(*other)) {
                match state.slots[other].row.holder {
                    Holder::Nobody => (),
                    Holder::Session(dead) => gone.add(usize::from(dead)),
                    Holder::Grace { .. } => lapsed.add(other),
                }
            }
        }
        let declaration = state.transactions[x].declaration;
        let (phase, me, permits) = (Phase::Looked { slot: slot as u8, seen: row, how }, s as u8, state.permits);
        state.transactions[x] = Transaction { phase, me, permits, gone, lapsed, declaration, ..Transaction::default() };
        true
    }

    /// `take`: takes the slot if its row is still the one that was seen and no transaction is in the way. Otherwise the
    /// call is over.
    fn take(&self, state: &mut State, x: usize) -> bool {
        let Phase::Looked { slot, seen, how } = state.transactions[x].phase else { return false };
        let (slot, s) = (usize::from(slot), usize::from(state.transactions[x].me));
        let had = self.reserve(state, x, slot, how)
            && state.lives[s] == Life::Alive
            && self.has_seat(state, x, slot, how)
            && !state.is_locked(x, slot)
            && state.slots[slot].row == seen
            && (how == How::Granted || state.lives(slot))
            && (how != How::Granted || state.permits == state.transactions[x].permits || !self.has(ResizeIsSeen));
        if !had {
            state.transactions[x] = Transaction::default();
            return true;
        }
        let fence = if how == How::TakenBack { seen.fence } else { state.draw() };
        let older = seen.older && how != How::Granted;
        state.write(x, slot, Row { holder: Holder::Session(s as u8), fence, older });
        state.transactions[x].phase = Phase::Written;
        true
    }

    /// Returns whether no open transaction has checked the slot's former fence. For a lease in grace, also keeps that
    /// fence from new checks to the end of the transaction.
    fn reserve(&self, state: &mut State, x: usize, slot: usize, how: How) -> bool {
        let free = !state.is_fenced(x, slot);
        match how {
            How::TakenBack => true,
            How::Granted => free,
            How::TakenOver => {
                if free && self.has(GraceFenceIsHeld) {
                    state.transactions[x].excludes[slot] = state.slots[slot].row.fence;
                }
                free
            }
        }
    }

    /// `is_only_permit`.
    fn has_seat(&self, state: &mut State, x: usize, slot: usize, how: How) -> bool {
        if how == How::TakenBack && !self.has(TakeBackHasSeat) {
            return true;
        }
        let (me, others) = (state.transactions[x].me, state.transactions);
        let taken = others.iter().enumerate().any(|(y, other)| y != x && other.seat && other.me == me);
        let only = !(0..SLOTS).any(|other| other != slot && state.is_of(other, usize::from(me)));
        state.transactions[x].seat = true;
        (!taken || !self.has(SeatIsLocked)) && (only || !self.has(SeatIsLookedAt))
    }

    /// `succeed`: leaves a fenced lease with the former session, which ends.
    fn take_over(&self, state: &mut State, x: usize) -> bool {
        if state.lives[SUCCESSOR] != Life::Unopened || state.lives[FORMER] != Life::Alive {
            return false;
        }
        if state.transactions.iter().any(|other| other.phase == Phase::TakesOver) {
            return false;
        }
        for slot in 0..SLOTS {
            let row = state.slots[slot].row;
            if state.is_locked(x, slot) {
                continue;
            }
            match row.holder {
                Holder::Session(s) if usize::from(s) == FORMER => {
                    if self.has(TakeOverExcludesFenced) {
                        if state.is_fenced(x, slot) {
                            continue;
                        }
                        state.transactions[x].excludes[slot] = row.fence;
                    }
                    let fence = state.draw();
                    state.write(x, slot, Row { holder: Holder::Session(SUCCESSOR as u8), fence, ..row });
                }
                Holder::Grace { of, fencer } if usize::from(of) == FORMER => {
                    state.write(x, slot, Row { holder: Holder::Grace { of: SUCCESSOR as u8, fencer }, ..row });
                }
                _ => (),
            }
        }
        (state.transactions[x].phase, state.transactions[x].me) = (Phase::TakesOver, SUCCESSOR as u8);
        true
    }

    /// A process checks a fence that it has been told. Its session holds the lease, or let go of it.
    fn check(&self, state: &mut State, x: usize, s: usize, slot: usize) -> bool {
        let row = state.slots[slot].row;
        let allowed = match row.holder {
            Holder::Session(holder) => usize::from(holder) == s,
            Holder::Grace { fencer, .. } => usize::from(fencer) == s,
            Holder::Nobody => false,
        };
        let excludes = |other: &Transaction| other.excludes[slot] == row.fence && row.fence != 0;
        let passes = allowed && state.lives(slot) && !state.transactions.iter().any(excludes);
        if passes {
            let phase = Phase::Fenced { slot: slot as u8, fence: row.fence };
            state.transactions[x] = Transaction { phase, me: s as u8, ..Transaction::default() };
        }
        passes
    }

    fn end(&self, state: &mut State, x: usize, committed: bool) {
        let transaction = state.transactions[x];
        for slot in 0..SLOTS {
            if state.slots[slot].by != Some(x as u8) {
                continue;
            }
            state.slots[slot].by = None;
            let (old, new) = (state.slots[slot].row, std::mem::take(&mut state.slots[slot].new));
            if committed {
                if let Holder::Session(dead) = old.holder
                    && state.lives[usize::from(dead)] == Life::Expired
                {
                    state.recorded.add(usize::from(dead));
                }
                state.slots[slot].row = new;
                if matches!(new.holder, Holder::Session(_)) {
                    (state.slots[slot].lapsed, state.slots[slot].buried) = (false, false);
                }
                state.tell(new);
            }
        }
        if committed && transaction.phase == Phase::TakesOver {
            (state.lives[FORMER], state.lives[SUCCESSOR]) = (Life::Ended, Life::Alive);
        }
        if committed && transaction.phase == Phase::Written && self.has(CountedDeathIsWritten) {
            transaction.gone.members().for_each(|s| state.recorded.add(s));
            transaction.lapsed.members().for_each(|slot| state.slots[slot].buried = true);
        }
        state.transactions[x] = Transaction::default();
    }

    fn let_go(&self, state: &mut State, s: usize, slot: usize, grace: bool) -> bool {
        let row = state.slots[slot].row;
        let mine = match row.holder {
            Holder::Session(holder) => usize::from(holder) == s && state.lives[s] == Life::Alive,
            Holder::Grace { fencer, .. } => usize::from(fencer) == s && !grace && state.lives(slot),
            Holder::Nobody => false,
        };
        let closing = state.transactions.iter().any(|other| other.phase == Phase::TakesOver) && s == FORMER;
        if !mine || closing || state.slots[slot].by.is_some() || !grace && state.is_fenced(CLIENTS, slot) {
            return false;
        }
        let holder = if grace { Holder::Grace { of: s as u8, fencer: s as u8 } } else { Holder::Nobody };
        let fresh = Slot { row: Row { holder, older: row.older && grace, ..row }, ..Slot::default() };
        state.slots[slot] = fresh;
        true
    }

    fn resize(&self, state: &mut State, permits: u8) -> bool {
        let locked = state.transactions.iter().any(|other| other.declaration);
        if locked || state.resizes == 0 || permits == state.permits {
            return false;
        }
        (state.permits, state.resizes) = (permits, state.resizes - 1);
        for slot in &mut state.slots {
            slot.row.older = slot.row.holder != Holder::Nobody;
            slot.new.older = slot.by.is_some();
        }
        // The resize changes only `older` in a row that a transaction has looked at.
        for transaction in &mut state.transactions {
            if let Phase::Looked { seen, .. } = &mut transaction.phase {
                seen.older = seen.holder != Holder::Nobody;
            }
        }
        true
    }

    fn crash(&self, state: &mut State) {
        (0..CLIENTS).for_each(|x| self.end(state, x, false));
        for s in 0..SESSIONS {
            if state.lives[s] == Life::Expired && !state.recorded.has(s) {
                state.lives[s] = Life::Alive;
            }
        }
        for slot in &mut state.slots {
            slot.lapsed &= slot.buried;
        }
        state.crashes -= 1;
    }

    pub(super) fn step(&self, state: &mut State, step: Step) -> bool {
        match step {
            Step::Look { x, s, slot } => self.look(state, x, s, slot),
            Step::Take { x } => self.take(state, x),
            Step::TakeOver { x } => self.take_over(state, x),
            Step::Check { x, s, slot } => self.check(state, x, s, slot),
            Step::Commit { x } => {
                self.end(state, x, true);
                true
            }
            Step::Abort { x } => {
                self.end(state, x, false);
                true
            }
            Step::Release { s, slot } => self.let_go(state, s, slot, false),
            Step::LetGo { s, slot } => self.let_go(state, s, slot, true),
            Step::Resize { permits } => self.resize(state, permits),
            Step::Expire { s } => {
                let alive = state.lives[s] == Life::Alive;
                if alive {
                    state.lives[s] = Life::Expired;
                }
                alive
            }
            Step::Lapse { slot } => {
                let lives = matches!(state.slots[slot].row.holder, Holder::Grace { .. }) && state.lives(slot);
                state.slots[slot].lapsed |= lives;
                lives
            }
            Step::Crash => {
                self.crash(state);
                true
            }
        }
    }
}
