//! With all guards in place every reachable state is explored, and no property is broken.

use eskit_lease_model::check::holds;
use eskit_lease_model::state::{ANY, Budget};
use eskit_lease_model::system::System;

/// A budget of so many client calls, one prepared transaction and one crash.
const fn calls(calls: u8) -> Budget {
    Budget { calls, prepares: 1, crashes: 1 }
}

/// Two sessions and one resource, and two transactions of clients at a time.
const SMALL: System = System { sessions: 2, resources: 1, clients: 2, ..System::WHOLE };

/// Calls, ends of transactions and passes of the worker are cut into all their steps, with steps of others in between.
const IN_STEPS: System = System { calls_in_steps: true, ends_in_steps: true, passes_in_steps: true, ..SMALL };

#[test]
fn three_sessions_and_two_resources() {
    holds(System { budget: calls(3), ..System::WHOLE });
}

#[test]
fn two_sessions_and_one_resource() {
    holds(System { budget: calls(3), ..SMALL });
}

#[test]
fn as_many_calls_as_they_like() {
    holds(System { reading: false, budget: calls(ANY), ..SMALL });
}

#[test]
fn all_in_steps() {
    holds(System { reading: false, budget: calls(2), ..IN_STEPS });
}

#[test]
fn sessions_that_come_and_go() {
    holds(System { opening: true, verbs: 2, budget: calls(4), ..SMALL });
}
