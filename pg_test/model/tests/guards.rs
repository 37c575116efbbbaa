//! Takes out each guard once: the model checker then finds that the property which the guard protects is broken, in a
//! small system of its own. With the guard in place that system is explored to its end, and no property is broken.
//!
//! Some guards are doubled by another: the system tolerates the loss of either one, but not of both.

use eskit_lease_model::check::{Guarded, finds, holds};
use eskit_lease_model::guards::Guard::*;
use eskit_lease_model::properties::*;
use eskit_lease_model::state::Budget;
use eskit_lease_model::system::System;

/// Three sessions, two clients and one resource; so many calls, each in one step.
const fn calls(calls: u8) -> System {
    System {
        resources: 1,
        clients: 2,
        budget: Budget { calls, prepares: 0, crashes: 0 },
        fencing: false,
        cancelling: false,
        reading: false,
        ..System::WHOLE
    }
}

const fn two(system: System) -> System {
    System { sessions: 2, ..system }
}

const fn prepared(system: System) -> System {
    System { budget: Budget { prepares: 1, ..system.budget }, ..system }
}

const fn crashed(system: System) -> System {
    System { budget: Budget { crashes: 1, ..system.budget }, ..system }
}

const fn fenced(system: System) -> System {
    System { fencing: true, ..system }
}

const fn calls_in_steps(system: System) -> System {
    System { calls_in_steps: true, ..system }
}

const fn ends_in_steps(system: System) -> System {
    System { ends_in_steps: true, ..system }
}

const fn passes_in_steps(system: System) -> System {
    System { passes_in_steps: true, ..system }
}

#[test]
fn a_heartbeat_that_is_not_atomic() {
    finds(&[AtomicExpiry], two(calls(0)), DEAD_IS_DEAD);
}

#[test]
fn a_commit_that_does_not_post() {
    finds(&[CommitPosts], two(calls(3)), GRANTED);
}

/// A thawed session asks for a rescan, and a busy resource is tried again until the transactions in the way have ended.
#[test]
fn an_abort_that_does_not_post() {
    let system = System { clients: 1, ..two(calls(3)) };
    holds(system.without(&[AbortPosts]));
    holds(system.without(&[ThawRescans]));
    finds(&[AbortPosts, ThawRescans], system, GRANTED);
}

#[test]
fn a_thaw_that_has_nothing_looked_through() {
    finds(&[ThawRescans], two(calls(4)), GRANTED);
}

#[test]
fn a_post_before_what_it_tells_of_is_visible() {
    finds(&[PostedOnceVisible], two(calls(3)), GRANTED);
}

#[test]
fn a_prepared_transaction_that_nobody_watches() {
    finds(&[PrepareIsWatched], prepared(two(calls(3))), GRANTED);
}

#[test]
fn a_prepared_transaction_that_is_forgotten_over_a_crash() {
    finds(&[BootFindsPrepared], crashed(prepared(two(calls(2)))), GRANTED);
}

#[test]
fn an_entry_that_is_dropped_when_the_ring_is_full() {
    finds(&[FullRingRescans], System { resources: 2, ring_size: 1, ..two(calls(4)) }, GRANTED);
}

#[test]
fn a_busy_resource_that_is_not_tried_again() {
    finds(&[BusyIsRetried], ends_in_steps(two(calls(4))), GRANTED);
}

#[test]
fn a_lease_of_the_dead_that_is_freed_while_its_next_holder_is_busy() {
    finds(&[BusyStaysDead], System { cancelling: true, ..two(calls(4)) }, GRANTED);
}

#[test]
fn a_pass_that_fails_and_forgets_what_it_had_taken() {
    finds(&[JudgedIsPutBack], passes_in_steps(two(calls(3))), GRANTED);
}

#[test]
fn a_pass_that_fails_and_forgets_the_flags() {
    finds(&[FlagsAreSetAgain], prepared(passes_in_steps(two(calls(3)))), GRANTED);
}

#[test]
fn a_fence_that_is_judged_before_it_is_locked() {
    finds(&[FenceIsJudgedLocked], fenced(calls_in_steps(two(calls(3)))), ONE_HOLDER);
}

#[test]
fn a_close_during_a_fenced_transaction() {
    finds(&[CloseExcludesFenced], fenced(two(calls(4))), ONE_HOLDER);
}

#[test]
fn a_release_during_a_fenced_transaction() {
    finds(&[ReleaseExcludesFenced], fenced(two(calls(4))), ONE_HOLDER);
}

#[test]
fn a_take_over_during_a_fenced_transaction() {
    finds(&[TakeOverTestsFence], fenced(two(calls(3))), ONE_HOLDER);
}

#[test]
fn the_dead_revived_by_a_restart_after_a_take_over() {
    finds(&[DeathIsWritten], crashed(two(calls(2))), DEAD_IS_DEAD);
}

#[test]
fn the_dead_revived_by_a_restart_under_a_prepared_take_over() {
    finds(&[PreparedKeepsDead], crashed(prepared(two(calls(2)))), ONE_TRUST);
    finds(&[PreparedKeepsDead], fenced(crashed(prepared(two(calls(4))))), ONE_HOLDER);
}

#[test]
fn a_grant_to_a_session_that_is_just_closing() {
    finds(&[GranteeIsLocked], two(calls(3)), TIDY);
    finds(&[GranteeIsLocked], calls(4), GRANTED);
}

#[test]
fn a_place_for_a_session_that_is_just_closing() {
    finds(&[QueueingIsLocked], two(calls(3)), TIDY);
}

#[test]
fn a_grant_to_a_session_that_was_alive_a_moment_ago() {
    finds(&[GranteeIsReadAgain], calls_in_steps(two(calls(1))), TIDY);
}

#[test]
fn an_acquire_that_jumps_the_queue() {
    finds(&[FirstComesFirst], calls(4), IN_LINE);
}

#[test]
fn a_lease_that_is_not_the_one_that_was_looked_at() {
    finds(&[SeenRowIsClaimed], calls_in_steps(two(calls(4))), ONE_TRUST);
}

#[test]
fn two_who_make_the_first_row_of_a_name() {
    finds(&[NameIsGuarded], calls_in_steps(two(calls(2))), NOBODY_WAITS);
}

/// As long as the row is still the one that was looked at, no session has been granted a later fence.
#[test]
fn a_fence_that_is_drawn_before_the_row_is_had() {
    holds(calls_in_steps(two(calls(3))).without(&[FenceIsDrawnLast]));
    finds(&[FenceIsDrawnLast, SeenRowIsClaimed], calls_in_steps(two(calls(3))), FENCES_RISE);
}

#[test]
fn fences_that_are_not_raised_after_a_crash() {
    finds(&[FencesAreRaised], crashed(two(calls(2))), FENCES_RISE);
}

/// A process that has read the row and then finds no slot reads the row again.
#[test]
fn a_slot_that_leaves_no_tombstone() {
    let system = crashed(System { reading: true, ..two(calls(1)) });
    holds(system.without(&[Tombstone]));
    holds(system.without(&[RowIsReadAgain]));
    finds(&[Tombstone, RowIsReadAgain], system, DEAD_IS_DEAD);
}

#[test]
fn a_slot_that_is_made_of_a_row_that_is_gone() {
    finds(&[RowIsReadAgain], crashed(prepared(System { reading: true, ..two(calls(1)) })), TIDY);
}

#[test]
fn nobody_lives_over_a_restart() {
    finds(&[OldRowsLive], crashed(System { opening: true, verbs: 2, ..two(calls(4)) }), ONE_TRUST);
}

#[test]
fn a_close_that_was_prepared_and_rolled_back() {
    finds(&[RescanThaws], prepared(two(calls(1))), TIDY);
}

#[test]
fn a_close_that_was_prepared_and_is_forgotten_over_a_crash() {
    finds(&[PreparedEndFreezes], crashed(prepared(two(calls(2)))), ENDING);
}

#[test]
fn a_lease_without_a_session_that_is_in_somebody_s_hands() {
    finds(&[StrayIsRetried], crashed(prepared(System { reading: true, ..two(calls(3)) })), TIDY);
}

#[test]
fn a_close_that_was_prepared_before_a_crash() {
    finds(&[RescanEndsOrphans], crashed(prepared(two(calls(1)))), TIDY);
}

#[test]
fn an_opening_that_is_committed_after_its_session_was_swept() {
    finds(&[LateOpeningRescans], System { opening: true, ..two(calls(1)) }, TIDY);
}
