//! All guards in place: every state that there is is reached, and nothing goes wrong in any.

use eskit_lease_model::state::{ANY, Budget};
use eskit_lease_model::system::System;
use stateright::{Checker, Model};

/// Explores all runs to their end, and says how many states that were.
fn explore(what: &str, system: System) {
    let checker = system.checker().threads(2).spawn_bfs().join();
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{what}: {property}\n{:#?}", path.into_actions());
    }
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{what}: {states} states, {steps} steps, {} deep", checker.max_depth());
}

/// So many calls of clients, with one transaction prepared and one crash.
const fn calls(calls: u8) -> Budget {
    Budget { calls, prepares: 1, crashes: 1 }
}

/// Two sessions and one resource, and two transactions of clients at a time.
const SMALL: System = System { sessions: 2, resources: 1, clients: 2, ..System::WHOLE };

/// Calls, ends of transactions and passes of the worker in all their steps, with those of others in between.
const IN_STEPS: System = System { calls_in_steps: true, ends_in_steps: true, passes_in_steps: true, ..SMALL };

#[test]
fn three_sessions_and_two_resources() {
    explore("three sessions, two resources", System { budget: calls(3), ..System::WHOLE });
}

#[test]
fn two_sessions_and_one_resource() {
    explore("two sessions, one resource", System { budget: calls(3), ..SMALL });
}

#[test]
fn as_many_calls_as_they_like() {
    explore("two sessions, one resource, any number of calls", System { reading: false, budget: calls(ANY), ..SMALL });
}

#[test]
fn all_in_steps() {
    explore("two sessions, one resource, in all steps", System { reading: false, budget: calls(2), ..IN_STEPS });
}

#[test]
fn sessions_that_come_and_go() {
    let system = System { opening: true, verbs: 2, budget: calls(4), ..SMALL };
    explore("sessions that come and go, two calls a transaction", system);
}
