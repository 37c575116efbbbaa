//! Grace, take-over by name and permits: a model of its own, with little else in it.
//!
//! There are three sessions of one process each: a former one, its successor, which takes over from it, and a stranger.
//! They compete for the slots of one semaphore. With one permit that is an exclusive lease. A lease in grace has a
//! private session. Its row says which session let go of the lease and which one may acquire it.
//!
//! | step               | in the code                                                                            |
//! |--------------------|----------------------------------------------------------------------------------------|
//! | `Look`             | `acquire::look_at_permits` with `look_at_own`, `semaphore::survey`                       |
//! | `Take`             | `Taking::take` with `grace::take_back`, `grace::reserve`, `grant::claim`, `give_back`   |
//! | `TakeOver`         | `takeover::succeed`                                                                    |
//! | `Check`            | `fence::check`                                                                         |
//! | `Release`, `LetGo` | `lease_release` without grace and with it, committed at once                             |
//! | `Resize`           | `semaphore_resize`, committed at once                                                   |
//! | `Expire`, `Lapse`  | time: of a session, and of a private one                                                 |
//! | `Crash`            | shared memory is made anew; a dead session without a row of its death lives again      |
//!
//! Queues, the worker and prepared transactions are not here: they make the same grants. A semaphore does not grant a
//! dead session's slot while its fence is in use. Both the count and the grant see to that, so only the large model
//! takes that guard out.
//!
//! Files, low to high: state, mod, steps.

pub mod state;
mod steps;

use crate::guards::Guard;
use crate::set::Set;
use state::{CLIENTS, FENCES, Life, Phase, SESSIONS, SLOTS, SUCCESSOR, State};
use stateright::{Model, Property};

pub const ONE_PROCESS: &str = "no two processes are told one fence";
pub const ONE_FENCE: &str = "while a fenced transaction is open its slot has no other fence";
pub const ONE_PERMIT: &str = "a session has one permit at most";
pub const PERMITS: &str = "nothing is granted while as many hold it as there are permits";

#[derive(Clone, Copy, Debug)]
pub struct Succession {
    pub without: &'static [Guard],
    pub permits: u8,
    /// The number of slots, including those beyond the permits.
    pub slots: usize,
    pub sessions: usize,
    /// The second session takes over from the first. Otherwise all sessions are strangers to each other.
    pub takes_over: bool,
    pub calls: u8,
    pub resizes: u8,
    pub crashes: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    Look { x: usize, s: usize, slot: usize },
    Take { x: usize },
    TakeOver { x: usize },
    Check { x: usize, s: usize, slot: usize },
    Commit { x: usize },
    Abort { x: usize },
    Release { s: usize, slot: usize },
    LetGo { s: usize, slot: usize },
    Resize { permits: u8 },
    Expire { s: usize },
    Lapse { slot: usize },
    Crash,
}

impl Succession {
    fn has(&self, guard: Guard) -> bool {
        !self.without.contains(&guard)
    }
}

impl Model for Succession {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut lives = [Life::Alive; SESSIONS];
        if self.takes_over {
            lives[SUCCESSOR] = Life::Unopened;
        }
        let (permits, calls, resizes, crashes) = (self.permits, self.calls, self.resizes, self.crashes);
        vec![State {
            slots: Default::default(),
            lives,
            recorded: Set::default(),
            permits,
            transactions: Default::default(),
            last_fence: 0,
            told: [0; FENCES],
            shared: false,
            calls,
            resizes,
            crashes,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let seats = || (0..self.sessions).flat_map(|s| (0..self.slots).map(move |slot| (s, slot)));
        let first_idle = (0..CLIENTS).find(|x| state.transactions[*x].phase == Phase::Idle);
        for x in 0..CLIENTS {
            match state.transactions[x].phase {
                Phase::Idle if first_idle == Some(x) && state.calls > 0 => {
                    steps.extend(seats().map(|(s, slot)| Step::Look { x, s, slot }));
                    steps.extend(seats().map(|(s, slot)| Step::Check { x, s, slot }));
                    steps.push(Step::TakeOver { x });
                }
                Phase::Idle => (),
                Phase::Looked { .. } => steps.push(Step::Take { x }),
                Phase::Written | Phase::TakesOver => steps.extend([Step::Commit { x }, Step::Abort { x }]),
                Phase::Fenced { .. } => steps.push(Step::Commit { x }),
            }
        }
        if state.calls > 0 {
            steps.extend(seats().map(|(s, slot)| Step::Release { s, slot }));
            steps.extend(seats().map(|(s, slot)| Step::LetGo { s, slot }));
        }
        steps.extend((1..=self.slots as u8).map(|permits| Step::Resize { permits }));
        steps.extend((0..self.sessions).map(|s| Step::Expire { s }));
        steps.extend((0..self.slots).map(|slot| Step::Lapse { slot }));
        steps.extend((state.crashes > 0).then_some(Step::Crash));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = *last;
        if !self.step(&mut next, step) {
            return None;
        }
        if matches!(
            step,
            Step::Look { .. } | Step::Check { .. } | Step::TakeOver { .. } | Step::Release { .. } | Step::LetGo { .. }
        ) {
            next.calls -= 1;
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Succession>> {
        vec![
            Property::always(ONE_PROCESS, |_, state: &State| !state.shared),
            Property::always(ONE_FENCE, |_, state: &State| {
                state.transactions.iter().all(|transaction| match transaction.phase {
                    Phase::Fenced { slot, fence } => state.slots[usize::from(slot)].row.fence == fence,
                    _ => true,
                })
            }),
            Property::always(ONE_PERMIT, |_, state: &State| {
                (0..SESSIONS).all(|s| (0..SLOTS).filter(|slot| state.is_of(*slot, s)).count() < 2)
            }),
            Property::always(PERMITS, |_, state: &State| {
                let newer = (0..SLOTS).any(|slot| state.lives(slot) && !state.slots[slot].row.older);
                !newer || state.holders() <= usize::from(state.permits)
            }),
        ]
    }
}
