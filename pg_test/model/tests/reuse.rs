//! A slot gets its next session while a process that looked at it for the former session is stopped.

use eskit_lease_model::reuse::{Guard, OWN_NUMBERS, Reuse};
use stateright::{Checker, Model};

#[test]
fn no_number_of_another_session_is_written() {
    let checker = Reuse { without: None }.checker().spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
}

#[test]
fn without_a_count_it_is() {
    let checker = Reuse { without: Some(Guard::Count) }.checker().spawn_bfs().join();
    checker.assert_any_discovery(OWN_NUMBERS);
}

#[test]
fn without_a_look_in_between_it_is() {
    let checker = Reuse { without: Some(Guard::LookBetween) }.checker().spawn_bfs().join();
    checker.assert_any_discovery(OWN_NUMBERS);
}
