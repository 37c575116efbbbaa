//! The properties that hold in every state.
//!
//! The checker of stateright knows "in the end" only for paths without a cycle. So here the model states it as a
//! property of each state. Suppose that from a state on only the worker takes steps, and ended transactions tell of
//! their end. Then every free resource is granted to its waiter, or an open transaction is in the way and will tell at
//! its end. Every end of that transaction leads to a state with the same property. So the waiter gets a free resource
//! as soon as clients leave the worker alone for some passes.

use crate::client::Verb;
use crate::state::{Broken, CLIENTS, Fact, Phase, RESOURCES, SESSIONS, State, WORKER, Word};
use crate::steps::Step;
use crate::system::System;
use stateright::Property;

pub const ONE_HOLDER: &str = "never two holders: while a fenced transaction is open no other is granted its lease";
pub const ONE_TRUST: &str = "never two holders: no two trust at one time that they have a lease";
pub const DEAD_IS_DEAD: &str = "a dead session is never alive again";
pub const FENCES_RISE: &str = "fences only rise";
pub const NOBODY_WAITS: &str = "an acquire never waits";
pub const ENDING: &str = "nothing is extended of a session whose end is prepared";
pub const IN_LINE: &str = "first come, first served: who asks is not granted what another waits for";
pub const GRANTED: &str = "every free resource with a live waiter is granted in the end";
pub const SERVED: &str = "the first in line is served by its own acquire, with the worker stopped";
pub const TIDY: &str = "what has ended is taken away in the end";

/// The passes after which the worker has done all it can.
const PASSES: usize = 6;
/// An observer that sees only committed changes.
const NOBODY: usize = usize::MAX;

pub fn all() -> Vec<Property<System>> {
    vec![
        Property::always(ONE_HOLDER, |_, state: &State| state.has_one_holder()),
        Property::always(ONE_TRUST, |_, state: &State| state.has_one_trust()),
        Property::always(DEAD_IS_DEAD, |_, state: &State| !state.broken.revived),
        Property::always(FENCES_RISE, |_, state: &State| !state.broken.fence_fell),
        Property::always(NOBODY_WAITS, |_, state: &State| !state.broken.waited),
        Property::always(ENDING, |_, state: &State| !state.broken.extended),
        Property::always(IN_LINE, |_, state: &State| !state.broken.jumped),
        Property::always(GRANTED, System::grants_in_the_end),
        Property::always(SERVED, System::serves_without_the_worker),
        Property::always(TIDY, System::tidies_in_the_end),
    ]
}

impl Broken {
    pub fn is_broken(self) -> bool {
        self != Broken::default()
    }
}

impl State {
    fn has_one_holder(&self) -> bool {
        (0..RESOURCES).all(|r| {
            let fences = |x: &usize| self.transactions[*x].is_open() && self.transactions[*x].fenced[r] != 0;
            let mut open = (0..CLIENTS).filter(fences);
            let granted = |x: usize| {
                let (lease, fence) = (self.leases[r], self.transactions[x].fenced[r]);
                lease.seen_by(x).is_some_and(|row| row.fence == fence)
            };
            let first = open.clone().next().map(|x| self.transactions[x].fenced[r]);
            open.all(|x| granted(x) && Some(self.transactions[x].fenced[r]) == first)
        })
    }

    fn has_one_trust(&self) -> bool {
        (0..RESOURCES).all(|r| self.sessions.iter().filter(|session| session.trusts.has(r)).count() < 2)
    }

    fn is_anybody_open(&self) -> bool {
        self.transactions.iter().any(|transaction| transaction.is_open())
    }
}

impl System {
    /// Notes the sessions that have been dead, and whether any of them lives again.
    pub fn watch_the_dead(&self, next: &mut State, step: Step) {
        for s in 0..SESSIONS {
            let is = &next.sessions[s];
            // No process knows of a death until one finds out that the session is kept dead.
            let told = is.row.is_committed() && !self.is_kept_dead(next, s);
            let gone = is.row == Fact::Absent && is.reading;
            let (known, lives) = (is.word != Word::Free || told || gone, self.lives(next, s));
            next.broken.revived |= is.dead && lives;
            next.sessions[s].dead |= known && !lives && step != Step::Crash;
        }
    }

    /// Returns whether a living session waits for a resource that is free or has a dead holder.
    fn is_owed(&self, state: &State, r: usize) -> bool {
        let row = state.leases[r].row;
        self.first_in_line(state, NOBODY, r, Default::default()).is_some()
            && row.and_then(|row| self.living_holder(state, NOBODY, row)).is_none()
    }

    fn grants_in_the_end(&self, state: &State) -> bool {
        let owed = |state: &State| (0..self.resources).filter(|r| self.is_owed(state, *r)).collect::<Vec<_>>();
        if owed(state).is_empty() {
            return true;
        }
        let end = self.left_to_the_worker(state);
        owed(&end).into_iter().all(|r| self.is_somebody_in_the_way(&end, r))
    }

    /// Returns whether an open transaction is in the way of the resource, and its end will be noticed. Either the
    /// transaction tells of it, or the worker tries again as long as any transaction is open.
    fn is_somebody_in_the_way(&self, state: &State, r: usize) -> bool {
        let holder = state.leases[r].row.and_then(|row| row.holder).map(usize::from);
        let tried_again = state.ring.has(r) || holder.is_some_and(|s| state.sessions[s].word == Word::Dead);
        state.transactions.iter().filter(|transaction| transaction.is_open()).any(|transaction| {
            let tells = transaction.post.has(r) || transaction.is_prepared() && transaction.watched;
            tells || tried_again
        })
    }

    /// Returns the state after some passes of the worker, without a step of a client.
    fn left_to_the_worker(&self, state: &State) -> State {
        let mut state = *state;
        for _ in 0..PASSES {
            self.tell(&mut state);
            self.watch_prepared(&mut state);
            let mut next = state;
            if state.transactions[WORKER].phase == Phase::Idle && self.take_dirty(&mut next) {
                state = next;
            }
            if state.transactions[WORKER].phase == Phase::Idle {
                break;
            }
            for r in 0..self.resources {
                self.judge(&mut state, r);
            }
            self.sweep(&mut state);
            self.freeze_ended(&mut state, WORKER);
            self.commit(&mut state, WORKER);
        }
        self.tell(&mut state);
        state
    }

    /// Lets ended transactions tell of their end.
    pub fn tell(&self, state: &mut State) {
        for x in 0..=WORKER {
            self.settle(state, x);
            self.unlock(state, x);
        }
    }

    fn serves_without_the_worker(&self, state: &State) -> bool {
        if state.is_anybody_open() || (0..self.resources).all(|r| !self.is_owed(state, r)) {
            return true;
        }
        let mut settled = *state;
        self.tell(&mut settled);
        (0..self.resources).filter(|r| self.is_owed(&settled, *r)).all(|r| {
            let mut state = settled;
            let Some(s) = self.first_in_line(&state, NOBODY, r, Default::default()) else { return true };
            let steps = [Step::Call { x: 0, s, verb: Verb::Acquire(r) }, Step::Take { x: 0 }, Step::Commit { x: 0 }];
            steps.into_iter().all(|step| self.step(&mut state, step))
                && state.leases[r].row.is_some_and(|row| row.is_of(s))
        })
    }

    /// Returns whether the worker leaves nothing behind. No session stays frozen and no row of a dead session stays. A
    /// session without a row has no slot, place or lease.
    fn tidies_in_the_end(&self, state: &State) -> bool {
        let is_tidy = |state: &State| {
            (0..SESSIONS).all(|s| {
                let session = &state.sessions[s];
                let row = session.row.is_committed();
                let has = session.places.iter().any(|place| place.fact != Fact::Absent)
                    || state.leases.iter().any(|lease| lease.row.is_some_and(|row| row.is_of(s)));
                match session.word {
                    Word::Frozen | Word::Dead => false,
                    Word::Alive => row,
                    Word::Free | Word::Gone => !has && !row || session.word == Word::Free && self.lives(state, s),
                }
            })
        };
        state.is_anybody_open() || is_tidy(state) || is_tidy(&self.left_to_the_worker(state))
    }
}
