//! The model: a resource with some permits, each with a fence and at most one holder. An exclusive lease has one
//! permit.
//!
//! The model is sequential, and each operation carries the answer that was given. So a step is either possible or not.
//! Time matters in one place: a tenure may end without an answer, not before `ends_from` (its session expires, is
//! closed, or is taken over). An operation may rely on such an end if the operation itself was not over before
//! `ends_from`.
//!
//! A semaphore that shrinks takes nothing back. It grants nothing while as many sessions hold it as it has permits. A
//! successor inherits every permit, even one that its predecessor was never told of.

use std::collections::BTreeMap;
use todc_utils::Specification;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub session: u32,
    /// Whether its session has taken over from another.
    pub inherits: bool,
    pub fence: i64,
    pub ends_from: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Permits {
    pub permits: i32,
    pub holders: BTreeMap<i32, Holder>,
    /// The last fence of each slot.
    pub last: BTreeMap<i32, i64>,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Sets the state at the beginning.
    Start(Permits),
    Grant {
        slot: i32,
        holder: Holder,
        to: u64,
    },
    /// An answer says that the fence is held.
    Held {
        fence: i64,
    },
    /// An answer says that the fence is not held.
    Lost {
        fence: i64,
        to: u64,
    },
    Release {
        fence: i64,
    },
    Resize {
        permits: i32,
    },
}

impl Permits {
    fn slot_of(&self, fence: i64) -> Option<i32> {
        self.holders.iter().find(|(_, holder)| holder.fence == fence).map(|(slot, _)| *slot)
    }

    fn may_grant(&self, slot: i32, holder: &Holder, to: u64) -> bool {
        let live = |other: &Holder| other.ends_from > to;
        let is_permit = (0..self.permits).contains(&slot)
            && self.holders.values().filter(|other| live(other)).count() < self.permits as usize;
        (is_permit || holder.inherits)
            && self.last.get(&slot).is_none_or(|last| *last < holder.fence)
            && !self.holders.get(&slot).is_some_and(live)
            && !self.holders.values().any(|other| other.session == holder.session && live(other))
    }

    pub fn grant(&mut self, slot: i32, holder: &Holder) {
        self.last.insert(slot, holder.fence);
        self.holders.insert(slot, holder.clone());
    }

    pub fn release(&mut self, fence: i64) {
        self.holders.retain(|_, holder| holder.fence != fence);
    }
}

impl Specification for Permits {
    type State = Permits;
    type Operation = Step;

    fn init() -> Permits {
        Permits::default()
    }

    fn apply(step: &Step, state: &Permits) -> (bool, Permits) {
        let mut next = state.clone();
        let possible = match step {
            Step::Start(start) => {
                next = start.clone();
                true
            }
            Step::Grant { slot, holder, to } => {
                next.grant(*slot, holder);
                state.may_grant(*slot, holder, *to)
            }
            Step::Held { fence } => state.slot_of(*fence).is_some(),
            Step::Lost { fence, to } => state
                .slot_of(*fence)
                .is_none_or(|slot| state.holders.get(&slot).is_some_and(|holder| holder.ends_from <= *to)),
            Step::Release { fence } => {
                next.release(*fence);
                state.slot_of(*fence).is_some()
            }
            Step::Resize { permits } => {
                next.permits = *permits;
                true
            }
        };
        (possible, next)
    }
}
