//! All guards in place: nothing goes wrong in any state that is reached within so many steps.

use eskit_lease_model::system::System;
use stateright::{Checker, Model};

/// Explores all runs of up to so many steps, and says how many states that were.
fn explore(what: &str, system: System, depth: usize) {
    let checker = system.checker().threads(2).target_max_depth(depth).spawn_bfs().join();
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{what}: {property}\n{:#?}", path.into_actions());
    }
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{what}: {states} states, {steps} steps, {} deep", checker.max_depth());
}

/// Calls, ends of transactions and passes of the worker in all their steps, with those of others in between.
const IN_STEPS: System = System { calls_in_steps: true, ends_in_steps: true, passes_in_steps: true, ..System::WHOLE };

#[test]
fn three_sessions_and_two_resources() {
    explore("three sessions, two resources", System::WHOLE, 9);
}

#[test]
fn one_resource_in_all_steps() {
    explore("three sessions, one resource, in all steps", System { resources: 1, clients: 2, ..IN_STEPS }, 10);
}

#[test]
fn one_client_in_all_steps() {
    explore("two sessions, one client, in all steps", System { sessions: 2, resources: 1, clients: 1, ..IN_STEPS }, 17);
}

#[test]
fn sessions_that_come_and_go() {
    let system = System { opening: true, sessions: 2, resources: 1, clients: 2, verbs: 2, ..IN_STEPS };
    explore("sessions that come and go, two calls a transaction", system, 10);
}
