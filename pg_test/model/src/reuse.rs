//! One slot that several sessions have, one after another (shmem::{counted, slots}). A process looks at the slot for
//! the first of them and is stopped in between.
//!
//! The process reads a number of the slot, compares the slot's session, and writes the number; each is a step. For each
//! session a number begins with the same value, as the cap and `unproven` do in the code. Fewer sessions have the slot
//! than there are counts.

use stateright::{Model, Property};

pub const OWN_NUMBERS: &str = "no number of a session is written for another";

/// The sessions that have the slot in turn. There are more counts than sessions; the code has 256.
const SESSIONS: u8 = 4;
const COUNTS: u8 = 5;
/// The values that a number may have.
const VALUES: u8 = 3;

/// The guards of the code that prevent the fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// A number contains a count of the slot's sessions.
    Count,
    /// The process compares the slot's session between reading and writing. Without: before both.
    LookBetween,
}

#[derive(Clone, Copy, Debug)]
pub struct Reuse {
    pub without: Option<Guard>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
struct Number {
    count: u8,
    value: u8,
}

/// How far the process has come.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
enum Process {
    #[default]
    Begins,
    Looked,
    Read(Number),
    Both(Number),
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The session that has the slot. The process is for the first one.
    session: Option<u8>,
    /// How many sessions have had the slot.
    entered: u8,
    number: Number,
    process: Process,
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// `enter`; `Free` is the end of a session that is needed no more.
    Enter,
    Free,
    /// A caller changes the number for the session that has the slot.
    Change,
    Read,
    Look,
    Write,
}

impl Reuse {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn enter(&self, state: &mut State) -> bool {
        let enters = state.session.is_none() && state.entered < SESSIONS;
        if enters {
            let count = if self.has(Guard::Count) { (state.number.count + 1) % COUNTS } else { 0 };
            (state.session, state.number) = (Some(state.entered), Number { count, value: 0 });
            state.entered += 1;
        }
        enters
    }

    /// `Counted::change`, and `Slot::change`.
    fn process(&self, state: &mut State, step: Step) -> bool {
        let is_mine = state.session == Some(0);
        let between = self.has(Guard::LookBetween);
        state.process = match (state.process, step) {
            (Process::Begins, Step::Read) if between => Process::Read(state.number),
            (Process::Read(read), Step::Look) => {
                if is_mine {
                    Process::Both(read)
                } else {
                    Process::Begins
                }
            }
            (Process::Begins, Step::Look) if !between && is_mine => Process::Looked,
            (Process::Looked, Step::Read) => Process::Both(state.number),
            (Process::Both(read), Step::Write) => {
                if read == state.number {
                    state.number.value = (read.value + 1) % VALUES;
                    state.broken |= state.session.is_some_and(|session| session != 0);
                }
                Process::Begins
            }
            _ => return false,
        };
        true
    }
}

impl Model for Reuse {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, _state: &State, steps: &mut Vec<Step>) {
        steps.extend([Step::Enter, Step::Free, Step::Change, Step::Read, Step::Look, Step::Write]);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = *last;
        let taken = match step {
            Step::Enter => self.enter(&mut next),
            Step::Free => next.session.take().is_some(),
            Step::Change => {
                next.number.value = (next.number.value + 1) % VALUES;
                next.session.is_some()
            }
            step => self.process(&mut next, step),
        };
        taken.then_some(next)
    }

    fn properties(&self) -> Vec<Property<Reuse>> {
        vec![Property::always(OWN_NUMBERS, |_, state: &State| !state.broken)]
    }
}
