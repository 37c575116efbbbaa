//! Each guard taken out is found: the checker sees what it is there for go wrong.

use eskit_lease_model::guards::Guard::{self, *};
use eskit_lease_model::properties::*;
use eskit_lease_model::system::System;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::time::Duration;

/// Takes a guard out and looks for the fault; the states shown are those on the shortest way to it.
fn finds(guard: Guard, system: System, property: &'static str) {
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = system
        .without(guard)
        .checker()
        .threads(2)
        .timeout(Duration::from_secs(8))
        .finish_when(wanted)
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(property) else {
        panic!("without {guard:?} there should be a fault in {} states: {property}", checker.unique_state_count());
    };
    println!("without {guard:?}: {property}; {} states", checker.unique_state_count());
    for step in path.into_actions() {
        println!("    {step:?}");
    }
}

/// Three sessions and one resource.
const ONE: System =
    System { resources: 1, calls_in_steps: true, ends_in_steps: true, passes_in_steps: true, ..System::WHOLE };
/// And nothing that is not needed.
const PLAIN: System =
    System { preparing: false, crashing: false, fencing: false, cancelling: false, reading: false, clients: 2, ..ONE };

#[test]
fn a_heartbeat_that_is_not_atomic() {
    finds(AtomicExpiry, PLAIN, DEAD_IS_DEAD);
    finds(AtomicExpiry, PLAIN, ONE_TRUST);
}

#[test]
fn a_commit_that_does_not_post() {
    finds(CommitPosts, PLAIN, GRANTED);
}

#[test]
fn an_abort_that_does_not_post() {
    finds(AbortPosts, PLAIN, GRANTED);
}

#[test]
fn a_post_before_what_it_tells_of_is_visible() {
    finds(PostedOnceVisible, PLAIN, GRANTED);
}

#[test]
fn a_prepared_transaction_that_nobody_watches() {
    finds(PrepareIsWatched, System { preparing: true, ..PLAIN }, GRANTED);
}

#[test]
fn a_prepared_transaction_that_is_forgotten_over_a_crash() {
    finds(BootFindsPrepared, System { preparing: true, crashing: true, ..PLAIN }, GRANTED);
}

#[test]
fn an_entry_that_is_dropped_when_the_ring_is_full() {
    finds(FullRingRescans, System { ring_size: 1, resources: 2, ..PLAIN }, GRANTED);
}

#[test]
fn a_busy_resource_that_is_not_tried_again() {
    finds(BusyIsRetried, PLAIN, GRANTED);
}

#[test]
fn a_pass_that_fails_and_forgets_what_it_had_taken() {
    finds(JudgedIsPutBack, PLAIN, GRANTED);
}

#[test]
fn a_pass_that_fails_and_forgets_the_flags() {
    finds(FlagsAreSetAgain, System { preparing: true, ..PLAIN }, GRANTED);
}

#[test]
fn a_fence_that_is_judged_before_it_is_locked() {
    finds(FenceIsJudgedLocked, System { fencing: true, ..PLAIN }, ONE_HOLDER);
}

#[test]
fn a_close_during_a_fenced_transaction() {
    finds(CloseExcludesFenced, System { fencing: true, ..PLAIN }, ONE_HOLDER);
}

#[test]
fn a_release_during_a_fenced_transaction() {
    finds(ReleaseExcludesFenced, System { fencing: true, ..PLAIN }, ONE_HOLDER);
}

#[test]
fn a_take_over_during_a_fenced_transaction() {
    finds(TakeOverTestsFence, System { fencing: true, ..PLAIN }, ONE_HOLDER);
}

#[test]
fn the_dead_revived_by_a_restart_under_a_prepared_take_over() {
    finds(PreparedKeepsDead, System { preparing: true, crashing: true, ..PLAIN }, ONE_TRUST);
    finds(PreparedKeepsDead, System { preparing: true, crashing: true, fencing: true, ..PLAIN }, ONE_HOLDER);
}

#[test]
fn a_grant_to_a_session_that_is_just_closing() {
    finds(GranteeIsLocked, PLAIN, TIDY);
    finds(GranteeIsLocked, PLAIN, GRANTED);
}

#[test]
fn a_grant_to_a_session_that_was_alive_a_moment_ago() {
    finds(GranteeIsReadAgain, PLAIN, GRANTED);
}

#[test]
fn a_lease_that_is_not_the_one_that_was_looked_at() {
    finds(SeenRowIsClaimed, PLAIN, ONE_TRUST);
}

#[test]
fn two_who_make_the_first_row_of_a_name() {
    finds(NameIsGuarded, PLAIN, NOBODY_WAITS);
}

#[test]
fn a_fence_that_is_drawn_before_the_row_is_had() {
    finds(FenceIsDrawnLast, PLAIN, FENCES_RISE);
}

#[test]
fn fences_that_are_not_raised_after_a_crash() {
    finds(FencesAreRaised, System { crashing: true, ..PLAIN }, FENCES_RISE);
}

#[test]
fn a_slot_that_leaves_no_tombstone() {
    finds(Tombstone, System { crashing: true, ..PLAIN }, DEAD_IS_DEAD);
}

#[test]
fn nobody_lives_over_a_restart() {
    finds(OldRowsLive, System { crashing: true, ..PLAIN }, ONE_TRUST);
}

#[test]
fn a_close_that_was_prepared_and_rolled_back() {
    finds(RescanThaws, System { preparing: true, ..PLAIN }, TIDY);
}

#[test]
fn a_close_that_was_prepared_before_a_crash() {
    finds(RescanEndsOrphans, System { preparing: true, crashing: true, ..PLAIN }, TIDY);
}

#[test]
fn an_opening_that_is_committed_after_its_session_was_swept() {
    finds(LateOpeningRescans, System { opening: true, ..PLAIN }, TIDY);
}
