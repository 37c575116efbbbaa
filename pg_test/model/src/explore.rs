//! The model as stateright explores it.

use crate::guards::Guard;
use crate::state::{ANY, Budget, Phase, SESSIONS, State, WORKER};
use crate::steps::Step;
use crate::system::System;
use crate::{canon, properties};
use stateright::{Model, Property};

impl System {
    /// Takes the further steps of a call, an end or a pass that the system does not cut into steps. Returns false if a
    /// step would wait.
    fn goes_on(&self, state: &mut State, step: Step) -> bool {
        if let Step::Call { x, .. } = step
            && !self.calls_in_steps
        {
            let done = match state.transactions[x].phase {
                Phase::Wants { .. } => self.take(state, x),
                Phase::Releases { .. } => self.let_go(state, x),
                Phase::Closes => self.end_session(state, x),
                Phase::Checks { .. } => self.check(state, x),
                _ => true,
            };
            if !done {
                return false;
            }
        }
        if step == Step::TakeDirty && !self.passes_in_steps {
            (0..self.resources).for_each(|r| {
                self.judge(state, r);
            });
            self.sweep(state);
            self.freeze_ended(state, WORKER);
            self.commit(state, WORKER);
        }
        if !self.ends_in_steps {
            self.tell(state);
        }
        true
    }
}

impl Budget {
    fn spend(&mut self, step: Step) {
        let left = match step {
            Step::Call { .. } => &mut self.calls,
            Step::Prepare { .. } => &mut self.prepares,
            Step::Crash => &mut self.crashes,
            _ => return,
        };
        if *left != ANY {
            *left -= 1;
        }
    }
}

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut state = if self.opening { State::empty() } else { State::opened() };
        for s in self.sessions..SESSIONS {
            state.sessions[s] = Default::default();
        }
        state.left = self.budget;
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_broken() {
            return;
        }
        self.client_steps(state, steps);
        self.worker_steps(state, steps);
        for s in 0..self.sessions {
            steps.extend([Step::Expire { s }, Step::KeepDead { s }]);
            steps.extend(self.reading.then_some(Step::ReadRow { s }));
            steps.extend((self.reading || self.opening).then_some(Step::Reclaim { s }));
            steps.extend((!self.has(Guard::AtomicExpiry)).then_some(Step::Beat { s }));
        }
        steps.extend((state.left.crashes > 0).then_some(Step::Crash));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = *last;
        if !self.step(&mut next, step) {
            return None;
        }
        if !self.goes_on(&mut next, step) {
            return None;
        }
        next.left.spend(step);
        self.watch_the_dead(&mut next, step);
        self.renew(&mut next);
        Some(canon::canonical(next, self)).filter(|next| next != last)
    }

    fn properties(&self) -> Vec<Property<System>> {
        properties::all()
    }
}
