//! The steps: which may come next, and what each does.

use crate::client::Verb;
use crate::state::{Phase, State, WORKER};
use crate::system::System;

/// One step of a process, with the name that the code has for it. `x`: the transaction; `s`: the session; `r`: the
/// resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    Call { x: usize, s: usize, verb: Verb },
    Take { x: usize },
    LetGo { x: usize },
    EndSession { x: usize },
    Check { x: usize },
    Freeze { x: usize },
    Commit { x: usize },
    Abort { x: usize },
    Prepare { x: usize },
    CommitPrepared { x: usize },
    RollbackPrepared { x: usize },
    Settle { x: usize },
    Unlock { x: usize },
    Expire { s: usize },
    Beat { s: usize },
    ReadRow { s: usize },
    KeepDead { s: usize },
    Reclaim { s: usize },
    Crash,
    WatchPrepared,
    TakeDirty,
    Judge { r: usize },
    Sweep,
}

impl System {
    fn verbs(&self) -> impl Iterator<Item = Verb> {
        let of_resource = move |r| {
            let fencing = self.fencing.then_some(Verb::FenceCheck(r));
            let cancelling = self.cancelling.then_some(Verb::Cancel(r));
            [Verb::Acquire(r), Verb::Release(r)].into_iter().chain(fencing).chain(cancelling)
        };
        let opening = self.opening.then_some(Verb::Open);
        (0..self.resources).flat_map(of_resource).chain([Verb::Close, Verb::Wait]).chain(opening)
    }

    /// Adds the next steps of clients. Clients are all alike, so only the first idle one begins a transaction.
    pub fn client_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let first_idle = (0..self.clients).find(|x| state.transactions[*x].phase == Phase::Idle);
        for x in 0..self.clients {
            let transaction = &state.transactions[x];
            let call = |s| move |verb| Step::Call { x, s, verb };
            match transaction.phase {
                Phase::Idle if first_idle == Some(x) && state.left.calls > 0 => {
                    (0..self.sessions).for_each(|s| steps.extend(self.verbs().map(call(s))));
                }
                Phase::Idle | Phase::Passes => (),
                Phase::Open => {
                    if transaction.verbs < self.verbs && state.left.calls > 0 {
                        steps.extend(self.verbs().map(call(usize::from(transaction.me))));
                    }
                    steps.extend([Step::Freeze { x }, Step::Commit { x }, Step::Abort { x }]);
                    steps.extend((state.left.prepares > 0).then_some(Step::Prepare { x }));
                }
                Phase::Wants { .. } => steps.extend([Step::Take { x }, Step::Abort { x }]),
                Phase::Releases { .. } => steps.extend([Step::LetGo { x }, Step::Abort { x }]),
                Phase::Closes => steps.extend([Step::EndSession { x }, Step::Abort { x }]),
                Phase::Checks { .. } => steps.extend([Step::Check { x }, Step::Abort { x }]),
                Phase::Frozen => {
                    steps.extend([Step::Commit { x }, Step::Abort { x }]);
                    steps.extend((state.left.prepares > 0).then_some(Step::Prepare { x }));
                }
                Phase::Ended { .. } => steps.push(Step::Settle { x }),
                Phase::Told => steps.push(Step::Unlock { x }),
                Phase::Prepared => steps.extend([Step::CommitPrepared { x }, Step::RollbackPrepared { x }]),
            }
        }
    }

    pub fn worker_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let x = WORKER;
        steps.push(Step::WatchPrepared);
        match state.transactions[x].phase {
            Phase::Idle => steps.push(Step::TakeDirty),
            Phase::Passes if self.is_done(state) => {
                steps.extend([Step::Freeze { x }, Step::Commit { x }, Step::Abort { x }]);
            }
            Phase::Passes => {
                steps.extend((0..self.resources).map(|r| Step::Judge { r }));
                steps.extend([Step::Sweep, Step::Abort { x }]);
            }
            Phase::Frozen => steps.extend([Step::Commit { x }, Step::Abort { x }]),
            Phase::Ended { .. } => steps.push(Step::Settle { x }),
            Phase::Told => steps.push(Step::Unlock { x }),
            _ => (),
        }
    }

    /// Takes a step, if it is possible.
    pub fn step(&self, state: &mut State, step: Step) -> bool {
        if matches!(step, Step::Call { .. } | Step::Take { .. } | Step::TakeDirty | Step::Judge { .. } | Step::Sweep) {
            // A process that judges a session finds out that it is kept dead, and makes all others find the same.
            for s in 0..self.sessions {
                self.keep_dead(state, s);
            }
        }
        match step {
            Step::Call { x, s, verb } => self.call(state, x, s, verb),
            Step::Take { x } => self.take(state, x),
            Step::LetGo { x } => self.let_go(state, x),
            Step::EndSession { x } => self.end_session(state, x),
            Step::Check { x } => self.check(state, x),
            Step::Freeze { x } => self.freeze_ended(state, x),
            Step::Commit { x } => self.commit(state, x),
            Step::Abort { x } => self.abort(state, x),
            Step::Prepare { x } => self.prepare(state, x),
            Step::CommitPrepared { x } => self.end_prepared(state, x, true),
            Step::RollbackPrepared { x } => self.end_prepared(state, x, false),
            Step::Settle { x } => self.settle(state, x),
            Step::Unlock { x } => self.unlock(state, x),
            Step::Expire { s } => self.expire(state, s),
            Step::Beat { s } => self.beat(state, s),
            Step::ReadRow { s } => self.reads_row(state, s),
            Step::KeepDead { s } => self.keep_dead(state, s),
            Step::Reclaim { s } => self.reclaim(state, s),
            Step::Crash => {
                self.crash(state);
                true
            }
            Step::WatchPrepared => self.watch_prepared(state),
            Step::TakeDirty => self.take_dirty(state),
            Step::Judge { r } => self.judge(state, r),
            Step::Sweep => self.sweep(state),
        }
    }
}
