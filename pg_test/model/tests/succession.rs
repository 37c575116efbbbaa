//! Grace, take-over and permits: with all guards no state breaks a property, and the loss of each guard is found.

use eskit_lease_model::check::{finds, holds};
use eskit_lease_model::guards::Guard::*;
use eskit_lease_model::succession::*;

/// One lease, and a session, its successor and a stranger that compete for it.
const LEASE: Succession =
    Succession { without: &[], permits: 1, slots: 1, sessions: 3, takes_over: true, calls: 4, resizes: 0, crashes: 0 };
/// Two permits, for two strangers.
const SEMAPHORE: Succession = Succession { permits: 2, slots: 2, sessions: 2, takes_over: false, ..LEASE };
/// As many sessions as slots.
const RESIZED: Succession = Succession { resizes: 1, sessions: 3, ..SEMAPHORE };

#[test]
fn a_lease_that_is_taken_over() {
    holds(Succession { calls: 5, crashes: 1, ..LEASE });
}

#[test]
fn a_permit_that_is_taken_over() {
    holds(Succession { takes_over: true, resizes: 1, ..SEMAPHORE });
}

#[test]
fn a_successor_that_gets_the_fence_of_before() {
    finds(&[SuccessorGetsNewFence], LEASE, ONE_PROCESS);
}

#[test]
fn a_successor_that_only_tests_the_fence_of_before() {
    finds(&[GraceFenceIsHeld], Succession { calls: 5, ..LEASE }, ONE_FENCE);
}

#[test]
fn a_take_over_during_a_fenced_transaction() {
    finds(&[TakeOverExcludesFenced], LEASE, ONE_FENCE);
}

#[test]
fn two_calls_for_one_seat() {
    let system = Succession { calls: 2, ..SEMAPHORE };
    finds(&[SeatIsLocked], system, ONE_PERMIT);
    finds(&[SeatIsLookedAt], system, ONE_PERMIT);
}

#[test]
fn a_permit_that_comes_back_beside_another() {
    finds(&[TakeBackHasSeat], Succession { calls: 5, ..SEMAPHORE }, ONE_PERMIT);
}

#[test]
fn a_count_that_two_have_made() {
    finds(&[CountIsLocked], Succession { permits: 3, slots: 3, calls: 3, ..RESIZED }, PERMITS);
}

#[test]
fn a_holder_that_was_counted_as_gone() {
    finds(&[CountedDeathIsWritten], Succession { crashes: 1, ..RESIZED }, PERMITS);
}

#[test]
fn a_resize_that_is_not_seen() {
    finds(&[ResizeIsSeen], Succession { calls: 3, ..RESIZED }, PERMITS);
}
