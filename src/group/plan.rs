//! The plan of a rebalance: the new targets, and the owners that must release.

use super::assign::{assign, lot};
use super::state::{Counted, Member, State};
use pgrx::Uuid;
use std::collections::{HashMap, HashSet};

/// The changes that a rebalance writes, and the owners that it tells.
pub struct Plan {
    /// Partitions whose target or revocation has changed.
    pub changed: Vec<i32>,
    /// Owners that must release a partition, or no longer need to.
    pub told: HashSet<Uuid>,
    /// Members that count as active from now on; `draining` has those that count as draining.
    pub active: Vec<Uuid>,
    pub draining: Vec<Uuid>,
    pub dead: Vec<Uuid>,
}

/// Computes the targets from the present owners and the members that may get partitions, and puts them into the state.
/// `timeout`: microseconds that an owner has to release what goes to another member.
pub fn plan(state: &mut State, now: u64, timeout: u64) -> Plan {
    let sessions = |of: &dyn Fn(&Member) -> bool| -> Vec<Uuid> {
        state.members.iter().filter(|member| of(member)).map(|member| member.session).collect()
    };
    let mut plan = Plan {
        changed: Vec::new(),
        told: HashSet::new(),
        active: sessions(&|m| m.alive && !m.draining && m.counted != Some(Counted::Active)),
        draining: sessions(&|m| m.alive && m.draining && m.counted != Some(Counted::Draining)),
        dead: sessions(&|m| !m.alive),
    };
    // A group changes its size only when no partition is owned, so even draining members must release.
    let resizing = state.resize_to.is_some();
    let keeps: HashSet<Uuid> = sessions(&|m| m.alive && m.draining && !resizing).into_iter().collect();
    let members: HashSet<Uuid> = sessions(&|m| m.alive).into_iter().collect();
    let targets = targets(state);
    for (index, (known, target)) in (0..).zip(state.partitions.iter_mut().zip(targets)) {
        let revoking = match (known.owner, known.fence()) {
            // An owner that has left the group cannot be asked any more.
            (Some(owner), Some(fence)) if !members.contains(&owner) => {
                Some((fence, known.revoking.map_or(now, |(_, at)| at.min(now))))
            }
            (Some(owner), Some(fence)) if target != Some(owner) && !keeps.contains(&owner) => {
                Some(known.revoking.unwrap_or((fence, now + timeout)))
            }
            _ => None,
        };
        if known.target != target || known.revoking != revoking {
            plan.changed.push(index);
        }
        let is_to_go =
            |target: Option<Uuid>, revoking: bool| revoking || target.is_some_and(|to| known.owner != Some(to));
        if is_to_go(known.target, known.revoking.is_some()) != is_to_go(target, revoking.is_some()) {
            plan.told.extend(known.owner);
        }
        (known.target, known.revoking) = (target, revoking);
    }
    for member in &mut state.members {
        member.counted = member.alive.then_some(if member.draining { Counted::Draining } else { Counted::Active });
    }
    state.members.retain(|member| member.alive);
    debug_assert!(
        state.partitions.iter().filter_map(|known| known.target).all(|target| members.contains(&target)),
        "targets are living members"
    );
    plan
}

/// Returns the new target of each partition. There are no targets if no member is active, or while the group is drained
/// to change its size.
fn targets(state: &State) -> Vec<Option<Uuid>> {
    let active: Vec<&Member> = state.members.iter().filter(|member| member.alive && !member.draining).collect();
    if active.is_empty() || state.resize_to.is_some() {
        return vec![None; state.partitions.len()];
    }
    let ids: Vec<&str> = active.iter().map(|member| member.id.as_str()).collect();
    let id_of: HashMap<Uuid, &str> = active.iter().map(|member| (member.session, member.id.as_str())).collect();
    let owners: Vec<Option<&str>> = state
        .partitions
        .iter()
        // A partition that is on its way to a member is not sent elsewhere.
        .map(|known| [known.owner, known.target].into_iter().flatten().find_map(|session| id_of.get(&session).copied()))
        .collect();
    let members = assign(state.assignor, &ids, &owners, Some(&|id| lot(&state.name, id)));
    members.into_iter().map(|member| member.map(|index| active[index].session)).collect()
}
