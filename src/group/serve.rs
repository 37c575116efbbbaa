//! Serving: gives partitions to their targets, either all free ones of a group or the ones that a transaction just
//! releases.
//!
//! A partition that goes from one session to another is a hand-over. Its time begins with the release by the former
//! owner, the end of that owner's session, or the deadline to release. It does not begin before the target counts as a
//! member: until then no session waited for the partition.

use super::state::{Partition, State};
use super::{members, targets};
use crate::base::limits;
use crate::call::Call;
use crate::lease::candidate::{Candidate, Grant, HandOver};
use crate::lease::declaration::{self, Kind};
use crate::lease::free::free;
use crate::lease::handover::{admit, free_since};
use crate::lease::row::{LeaseRow, Leases, Seat};
use crate::lease::{grant, history, refence};
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::table::Locked;
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Grants free partitions to their targets; a partition of a dead or releasing owner is free. Takes back a partition if
/// its owner is late. Returns whether any owner has changed.
pub fn serve(
    call: &Call,
    state: &State,
    now: u64,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> bool {
    let members: HashMap<Uuid, u64> = state.members.iter().map(|member| (member.session, member.settles_at)).collect();
    let wanted = &|known: &Partition| only.is_none() || only == known.target;
    // A session that has just left may still be the target.
    let next = |known: &Partition| known.target.filter(|target| members.contains_key(target));
    let leases = Leases::open();
    let (overdue, more) = take_overdue(state, now, wanted, result);
    let released = |row: &LeaseRow| letting_go(row) || overdue.contains_key(&row.fence);
    let is_free = |known: &Partition| match (known.owner, known.row) {
        // A fence of a former history is replaced: greater ones may have been granted and lost.
        (Some(owner), Some(row)) if known.target == Some(owner) => !refence::is_current(call, &row),
        (Some(_), row) => row.is_some_and(|row| overdue.contains_key(&row.fence)),
        (None, _) => true,
    };
    let free: Vec<(i32, &Partition, Uuid)> = (0..)
        .zip(&state.partitions)
        .filter(|(_, known)| wanted(known) && is_free(known))
        .filter_map(|(partition, known)| Some((partition, known, next(known)?)))
        .collect();
    let mut ready = HashMap::<Uuid, SlotRef>::new();
    let skipped = admit(call, free.iter().map(|(_, _, target)| *target).collect(), &mut ready);
    if !skipped.is_empty() {
        result.busy.insert(state.name.clone());
    }
    let candidates = free.iter().filter_map(|(partition, known, target)| {
        Some(Candidate {
            resource: state.name.clone(),
            slot: *partition,
            declared: Some((Kind::Group, state.partitions.len() as i32)),
            row: known.row,
            released: known.row.is_some_and(|row| released(&row)),
            inherited: false,
            grantee: *ready.get(target)?,
            places: Vec::new(),
            gone: Rc::default(),
        })
    });
    let candidates: Vec<Candidate> = candidates.collect();
    let wanted = candidates.len();
    let since = |one: &Candidate| {
        let late = one.row.and_then(|row| overdue.get(&row.fence)).map(|late| late.deadline);
        let free = late.or_else(|| free_since(call, one))?.max(*members.get(&one.grantee.session())?).min(now);
        (!one.is_own()).then_some((one.slot, free))
    };
    let since: HashMap<i32, u64> = candidates.iter().filter_map(since).collect();
    let granted = grant::grant(call, &leases, candidates);
    let handed_over = granted.keys().filter_map(|(_, partition)| since.get(partition));
    handed_over.for_each(|since| call.seam().handed_over(Some(*since)));
    if granted.len() < wanted {
        result.busy.insert(state.name.clone());
    }
    // The group is judged again at once: more partitions are overdue, or all of them may now be free for a resize.
    if more || state.resize_to.is_some() && !overdue.is_empty() {
        call.seam().judge_at(&state.name, now);
    }
    let moved = !granted.is_empty() || !overdue.is_empty();
    free_ungranted(call, state, &leases, overdue.into_values().collect(), &granted, result);
    result.granted.extend(granted);
    moved
}

/// Gives partitions that this transaction releases to their present targets. Returns whether it has given all of them.
pub fn hand_over(call: &Call, name: &str, rows: &[LeaseRow], result: &mut HandOver) -> bool {
    let Some(partitions) = declaration::of(name).filter(|known| known.kind == Kind::Group).map(|known| known.slots)
    else {
        return false;
    };
    let targets = targets::of_partitions(name, rows.iter().map(|row| row.slot).filter(|slot| *slot < partitions));
    let members: HashSet<Uuid> = targets.values().copied().collect();
    let members = members.into_iter().filter(|target| members::is_member(name, *target)).collect();
    let mut ready = HashMap::<Uuid, SlotRef>::new();
    admit(call, members, &mut ready);
    let candidates = rows.iter().filter_map(|row| {
        Some(Candidate {
            resource: name.to_owned(),
            slot: row.slot,
            declared: Some((Kind::Group, partitions)),
            row: Some(*row),
            released: true,
            inherited: false,
            grantee: *ready.get(targets.get(&row.slot)?)?,
            places: Vec::new(),
            gone: Rc::default(),
        })
    });
    let candidates: Vec<Candidate> = candidates.collect();
    let passes_on = |one: &Candidate| (!one.is_own()).then_some(one.slot);
    let passing: HashSet<i32> = candidates.iter().filter_map(passes_on).collect();
    let granted = grant::grant(call, &Leases::open(), candidates);
    let handed_over = granted.keys().filter(|(_, partition)| passing.contains(partition));
    handed_over.for_each(|_| call.seam().handed_over(Some(clock::now())));
    let all = granted.len() == rows.len();
    result.granted.extend(granted);
    all
}

/// A partition that its owner has not released in time.
struct Overdue {
    partition: i32,
    owner: Uuid,
    deadline: u64,
}

/// Takes overdue partitions from living owners. Returns them by fence, and whether there are more than one call takes.
fn take_overdue(
    state: &State,
    now: u64,
    wanted: &dyn Fn(&Partition) -> bool,
    result: &mut HandOver,
) -> (HashMap<i64, Overdue>, bool) {
    let mut overdue = HashMap::new();
    for (partition, known) in (0..).zip(&state.partitions).filter(|(_, known)| wanted(known)) {
        let late = known.revoking.filter(|(_, at)| *at <= now);
        if let (Some((fence, deadline)), Some(owner)) = (late, known.owner) {
            if overdue.len() == limits::GRANT_BATCH {
                return (overdue, true);
            }
            // A fenced transaction of the owner may still be open. The partition stays with the owner until that ends.
            if Guard::Fence(fence).try_lock(Mode::Exclusive) {
                overdue.insert(fence, Overdue { partition, owner, deadline });
            } else {
                result.busy.insert(state.name.clone());
            }
        }
    }
    (overdue, false)
}

/// Frees the partitions that were taken and not granted again. Tells the former owners of all that were taken.
fn free_ungranted(
    call: &Call,
    state: &State,
    leases: &Leases,
    taken: Vec<Overdue>,
    granted: &HashMap<Seat, Grant>,
    result: &mut HandOver,
) {
    let seat = |partition: i32| (state.name.clone(), partition);
    let row = |partition: i32| state.partitions[partition as usize].row;
    let ungranted = taken.iter().map(|one| one.partition).filter(|p| !granted.contains_key(&seat(*p)));
    let mut freed = Vec::new();
    for partition in ungranted {
        match row(partition).filter(|row| leases.lock(row.tid, false) == Locked::Mine) {
            Some(row) => freed.push((seat(partition), row.tid)),
            None => {
                result.busy.insert(state.name.clone());
            }
        }
    }
    free(call, &freed, false);
    let next = |partition: i32| {
        let target = state.partitions[partition as usize].target?;
        granted.get(&seat(partition)).map(|grant| (target, grant.fence))
    };
    let lost = |Overdue { partition, .. }: &Overdue| {
        let gone = granted.contains_key(&seat(*partition)) || freed.iter().any(|((_, slot), _)| slot == partition);
        Some((state.partitions[*partition as usize].row.as_ref().filter(|_| gone)?, next(*partition)))
    };
    call.seam().count(Counter::Revocations, taken.iter().filter_map(lost).count());
    history::revoked(call, &state.name, taken.iter().filter_map(lost));
    for Overdue { partition, owner, .. } in taken {
        call.seam().changed(&state.name, partition);
        if let Some(at) = call.shared.find(call.home, owner) {
            call.seam().revise(at);
        }
    }
}
