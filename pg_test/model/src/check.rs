//! Explores systems to their end, and reports faults.

use crate::guards::Guard;
use crate::succession::Succession;
use crate::system::System;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A system whose guards can be taken out.
pub trait Guarded: Copy + Debug {
    fn without(self, guards: &'static [Guard]) -> Self;
}

impl Guarded for System {
    fn without(self, guards: &'static [Guard]) -> System {
        System { without: guards, ..self }
    }
}

impl Guarded for Succession {
    fn without(self, guards: &'static [Guard]) -> Succession {
        Succession { without: guards, ..self }
    }
}

/// Explores a system to its end. Panics if a property does not hold.
pub fn holds<S>(system: S)
where
    S: Model + Copy + Debug + Send + Sync + 'static,
    S::State: Clone + PartialEq + Hash + Send + Sync + 'static,
    S::Action: Clone + PartialEq + Debug,
{
    let checker = system.checker().threads(2).spawn_bfs().join();
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{system:?}: {property}\n{:#?}", path.into_actions());
    }
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("nothing goes wrong in {states} states, {steps} steps, {} deep: {system:?}", checker.max_depth());
}

/// Explores a system with all its guards to the end, then again without some. Panics unless the property is broken
/// then. Prints the length of the shortest way to the fault.
pub fn finds<S>(guards: &'static [Guard], system: S, property: &'static str)
where
    S: Guarded + Model + Send + Sync + 'static,
    S::State: Clone + PartialEq + Hash + Send + Sync + 'static,
    S::Action: Clone + PartialEq + Debug,
{
    holds(system);
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = system.without(guards).checker().finish_when(wanted).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("without {guards:?} there should be a fault: {property}");
    };
    println!("without {guards:?}, after {} steps: {property}", path.into_actions().len());
}
