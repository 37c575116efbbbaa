//! Judging a group: brings the owners of its partitions and their targets together, and decides which transaction
//! rebalances.

use super::rebalance::{self, can_rebalance};
use super::state::State;
use super::{members, serve};
use crate::base::error::Result;
use crate::base::settings;
use crate::call::Call;
use crate::lease::candidate::HandOver;
use crate::lease::row::LeaseRow;
use crate::pg::{clock, statement, transaction};
use crate::shmem::Shared;
use pgrx::Uuid;

/// Brings the owners of a group's partitions and their targets together, as far as no other transaction is in the way.
/// `only`: grants to this session alone, since a transaction that may stay open must not grant to others. Returns the
/// state of the group, unless an owner has changed.
pub fn judge(
    call: &Call,
    name: &str,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<Option<State>> {
    judge_if(call, name, only, letting_go, result, |state, now| may_rebalance(call, state, now))
}

/// Judges for a session that reads its assignment. Never fails because a table is locked.
pub fn judge_for_reader(call: &Call, name: &str, reader: Uuid) -> Result<Option<State>> {
    let rebalances = |state: &State, now| may_rebalance(call, state, now) && can_rebalance();
    judge_if(call, name, Some(reader), &|_| false, &mut HandOver::default(), rebalances)
}

/// Returns whether this statement rebalances. It does not in a transaction block, a DO statement or a procedure: these
/// would lock the group's row against members that join, leave or end. They judge the group at their commit; a
/// transaction block only unless the worker is about to judge it.
fn may_rebalance(call: &Call, state: &State, now: u64) -> bool {
    let (runs_code, in_block) = (statement::runs_code(), transaction::is_in_block());
    if runs_code || in_block && !worker_comes(state, now) {
        call.seam().at_commit(&state.name, judge_at_commit);
    }
    !runs_code && !in_block
}

fn worker_comes(state: &State, now: u64) -> bool {
    settings::WORKER.get() && state.can_wait(now)
}

fn judge_at_commit(shared: &'static Shared, name: &str) -> Result<()> {
    let call = Call::open(shared)?;
    if !can_rebalance() {
        call.seam().judge(name);
        return Ok(());
    }
    judge_if(&call, name, None, &|_| false, &mut HandOver::default(), |_, _| true).map(drop)
}

/// Judges a group. `rebalances` decides for a state that wants a rebalance whether this call does it. Otherwise the
/// worker does.
fn judge_if(
    call: &Call,
    name: &str,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
    rebalances: impl Fn(&State, u64) -> bool,
) -> Result<Option<State>> {
    let Some(mut state) = State::read(call, name, letting_go) else { return Ok(None) };
    let (mut now, mut locked) = (clock::now(), false);
    // A group may be crowded without wanting a rebalance: members come and go between two rebalances.
    if state.wants_rebalance(now) || state.is_crowded() && !transaction::is_in_block() {
        if !rebalances(&state, now) {
            call.seam().judge(name);
        } else if state.lock() {
            // The transaction that held the lock before may have changed the state.
            let Some(again) = State::read(call, name, letting_go) else { return Ok(None) };
            (state, locked) = (again, true);
            rebalance::rebalance(call, &mut state, letting_go, result)?;
            now = clock::now();
        } else {
            result.busy.insert(name.to_owned());
        }
    }
    let moved = serve::serve(call, &state, now, only, letting_go, result);
    if result.busy.contains(name) {
        // If this call has moved or locked something, it may have been in the way of other transactions: the worker
        // judges the group at once. Otherwise nothing has changed, and the worker tries again at growing intervals.
        if moved || locked {
            call.seam().judge(name);
        } else {
            call.seam().in_vain(name);
        }
    }
    if let Some(at) = state.next_due(now) {
        call.seam().judge_at(name, at);
    }
    Ok((!moved).then_some(state))
}

/// Gives partitions that `from` releases in this transaction to their targets. Partitions without a living target are
/// left to the worker, which judges the group after the commit. With the worker off, or if `from` is no longer a
/// member, this call judges the group.
pub fn hand_over(
    call: &Call,
    name: &str,
    from: Uuid,
    rows: &[LeaseRow],
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let is_done = serve::hand_over(call, name, rows, result);
    let is_left_to_worker = || settings::WORKER.get() && members::is_member(name, from);
    if is_done || is_left_to_worker() {
        return Ok(());
    }
    judge(call, name, None, letting_go, result).map(drop)
}
