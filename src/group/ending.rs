//! The fate of a session's memberships when it ends or another session takes it over.

use super::judge::judge;
use super::pass_on::pass_on;
use super::rebalance::can_rebalance;
use super::{members, state};
use crate::base::error::Result;
use crate::call::Call;
use crate::lease::candidate::HandOver;
use crate::lease::row::LeaseRow;
use crate::pg::clock;
use crate::seam;
use crate::session::succession;
use crate::shmem::Shared;
use pgrx::Uuid;

/// Removes sessions that have ended, or end with this transaction, from their groups, and judges these groups. Returns
/// whether there were any such groups.
pub fn leave_all(
    call: &Call,
    sessions: &[Uuid],
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<bool> {
    let groups = members::groups_of(sessions);
    let any = !groups.is_empty();
    for group in groups {
        // If another transaction has locked a member's row, a later rebalance removes the member.
        members::remove(call, &group, &members::lock(&group, sessions));
        judge(call, &group, None, letting_go, result)?;
        // No process looks at these sessions again, not even the worker. So the worker must judge the group, which may
        // have work left.
        call.seam().judge_at(&group, clock::now());
    }
    Ok(any)
}

/// Passes on a session's memberships to its successor. Returns false if another transaction is in the way in some
/// group.
pub fn inherit(call: &Call, old: Uuid, new: Uuid) -> bool {
    let mut all = true;
    for group in members::groups_of(&[old]) {
        all &= state::try_lock(&group) && pass_on(call, &group, old, new);
        call.seam().judge(&group);
    }
    all
}

/// Passes on, at the commit, the memberships of a session that this transaction takes over. Returns whether the session
/// has no membership. If the transaction is prepared, or another one is in the way, the sweep passes them on.
pub fn inherit_at_commit(call: &Call, old: Uuid) -> bool {
    let groups = members::groups_of(&[old]);
    if !groups.is_empty() {
        call.seam().at_commit("", pass_on_at_commit);
    }
    groups.iter().for_each(|group| call.seam().judge(group));
    groups.is_empty()
}

fn pass_on_at_commit(shared: &'static Shared, _: &str) -> Result<()> {
    let call = Call::open(shared)?;
    if can_rebalance() {
        for old in seam::ended() {
            succession::living_successor(&call, old).map(|new| inherit(&call, old, new.session));
        }
    }
    Ok(())
}
