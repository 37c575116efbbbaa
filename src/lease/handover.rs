//! Handing over: a lease goes to the next session if it is free, if its holder is dead, or if this transaction releases
//! it. The next session is the first in line for an exclusive lease or a semaphore, and the target for a group's
//! partition.
//!
//! A hand-over runs in the transaction of the holder's release or close, in the worker, and when a waiter's
//! session_wait has waited in vain ([`judge_places`]). A session_wait may run inside a long transaction, so it grants
//! to its own session only. A hand-over skips waiters that are ending, and places that an open transaction deletes. It
//! reports a resource as busy if it cannot serve the first in line now: for example, another transaction is changing
//! the lease. The worker tries these resources again.

use super::candidate::{Candidate, HandOver};
use super::declaration::{self, Kind};
use super::grant;
use super::line::{self, First};
use super::row::{LeaseRow, Leases, Probe, Seat};
use super::semaphore;
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::session;
use crate::session::holders::Holders;
use crate::session::succession;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// A slot that can be handed over.
struct Free {
    slot: i32,
    row: Option<LeaseRow>,
    declared: Option<(Kind, i32)>,
    /// As in [`Candidate`].
    gone: Rc<[Uuid]>,
}

/// Rows of leases that were just read, by resource. A grant locks a row first, and so finds out whether the row has
/// changed.
pub type Seen = BTreeMap<String, LeaseRow>;

/// Hands over resources, each to the next session. `letting_go` returns whether this transaction releases the lease of
/// a row, and so has excluded fenced transactions from its fence.
pub fn hand_over(
    call: &Call,
    resources: Vec<String>,
    seen: &Seen,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
) -> Result<HandOver> {
    let mut result = HandOver::default();
    let (groups, queued) = declaration::groups_among(call, resources);
    for group in groups {
        Kind::Group.rules().judge(call, &group, letting_go, &mut result)?;
    }
    // Few resources have waiters; only their leases are read.
    let line = line::first_in_line(call, queued.iter().map(String::as_str).collect());
    result.busy.extend(line.leaving);
    hand_over_to(call, line.first, seen, letting_go, &mut result);
    Ok(result)
}

/// Hands over each resource to its first in line, which the caller has just looked up. None of the resources is a
/// group.
pub fn hand_over_to(
    call: &Call,
    mut first: BTreeMap<String, First>,
    seen: &Seen,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) {
    if !first.is_empty() {
        let mut free = free_among(call, &first, seen, letting_go, result);
        serve(call, &mut first, &mut free, letting_go, result);
    }
}

/// Grants free slots to the first in line, as long as a resource has both a free slot and a first in line that can be
/// served.
fn serve(
    call: &Call,
    first: &mut BTreeMap<String, First>,
    free: &mut HashMap<String, Vec<Free>>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) {
    let leases = Leases::open();
    let (mut ending, mut ready) = (HashSet::new(), HashMap::<Uuid, SlotRef>::new());
    // Each round takes a free slot or leaves out sessions that are ending. So there are at most as many rounds as free
    // slots and ending sessions together.
    loop {
        let is_meant = |first: &First| result.only.is_none_or(|only| only == first.session);
        first.retain(|resource, first| is_meant(first) && free.get(resource).is_some_and(|slots| !slots.is_empty()));
        if first.is_empty() {
            return;
        }
        let skipped = admit(call, first.values().map(|first| first.session).collect(), &mut ready);
        let (again, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(first).into_iter().partition(|(_, first)| skipped.contains(&first.session));
        let mut places = line::places_of_first(&now);
        let candidates: Vec<Candidate> = now
            .iter()
            .filter_map(|(resource, First { session, .. })| {
                let Free { slot, row, declared, gone } = free.get_mut(resource)?.pop()?;
                Some(Candidate {
                    resource: resource.clone(),
                    slot,
                    declared,
                    released: row.is_some_and(|row| letting_go(&row)),
                    inherited: false,
                    row,
                    grantee: *ready.get(session)?,
                    // If its place is gone, the session has just given up waiting.
                    places: places.remove(resource)?,
                    gone,
                })
            })
            .collect();
        let since = |one: &Candidate| Some(((one.resource.clone(), one.slot), free_since(call, one)?));
        let since: HashMap<Seat, u64> = candidates.iter().filter_map(since).collect();
        let granted = grant::grant(call, &leases, candidates);
        granted.keys().for_each(|seat| call.seam().handed_over(since.get(seat).copied()));
        let names: HashSet<&str> = granted.keys().map(|(resource, _)| resource.as_str()).collect();
        let (mut served, failed): (Vec<_>, Vec<_>) = now.into_keys().partition(|name| names.contains(name.as_str()));
        served.retain(|resource| free.get(resource).is_some_and(|slots| !slots.is_empty()));
        // If the first in line cannot be served, no session behind it is served, although that one could be.
        result.busy.extend(failed);
        ending.extend(skipped);
        let again: HashSet<String> = again.into_keys().collect();
        let line = line::next_in_line(call, again.iter().chain(&served).map(String::as_str).collect(), &ending);
        *first = line.first;
        // If a skipped session is first in line again, its place belongs to a successor now, or its end was rolled
        // back.
        let in_hand = first.extract_if(.., |_, first| ending.contains(&first.session));
        result.busy.extend(in_hand.map(|(resource, _)| resource).chain(line.leaving));
        // The end of a skipped session may be rolled back. So the worker must look again at a resource that no other
        // session waits for.
        result.busy.extend(again.into_iter().filter(|resource| !first.contains_key(resource)));
        result.granted.extend(granted);
        pgrx::check_for_interrupts!();
    }
}

/// Returns since when the lease of a candidate is free, if that is known: since its release, or since its holder's end.
pub fn free_since(call: &Call, candidate: &Candidate) -> Option<u64> {
    let (row, now) = (candidate.row?, clock::now());
    let since = match row.session {
        _ if candidate.released => now,
        Some(dead) => call.shared.look(call.shared.find(call.home, dead)?)?.until,
        None => now.saturating_sub(u64::try_from(clock::timestamp() - row.released_at?).unwrap_or(0)),
    };
    Some(since.min(now))
}

/// Returns the slots that no living session holds.
fn free_among(
    call: &Call,
    first: &BTreeMap<String, First>,
    seen: &Seen,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> HashMap<String, Vec<Free>> {
    let leases = Leases::open();
    let (mut free, mut held) = (HashMap::new(), Vec::new());
    let permits = |resource: &str, next: &First, result: &mut HandOver| {
        free_permits(call, resource, next, seen.get(resource), letting_go, result)
    };
    let exclusive = |row| vec![Free { slot: 0, row, declared: None, gone: Rc::default() }];
    for (resource, next) in first {
        let row = seen.get(resource).filter(|row| row.slot == 0);
        match row.map_or_else(|| leases.glance(resource, 0), |row| Probe::Row(*row)) {
            Probe::Row(row) if row.declared && declaration::of(resource).is_some() => {
                free.insert(resource.clone(), permits(resource, next, result));
            }
            Probe::Row(row) if row.session.is_none() || letting_go(&row) => {
                free.insert(resource.clone(), exclusive(Some(row)));
            }
            Probe::Row(row) => held.push((resource, row, next)),
            Probe::InFlight(Some(row)) if !row.declared => {
                result.busy.insert(resource.clone());
            }
            Probe::InFlight(_) | Probe::Absent if declaration::of(resource).is_some() => {
                free.insert(resource.clone(), permits(resource, next, result));
            }
            Probe::InFlight(_) => {
                result.busy.insert(resource.clone());
            }
            Probe::Absent => {
                free.insert(resource.clone(), exclusive(None));
            }
        }
    }
    let holders = Holders::of(call, held.iter().filter_map(|(_, row, _)| row.session));
    let dead = held.iter().filter_map(|(_, row, _)| row.session.filter(|_| holders.living(row.session).is_none()));
    let heirs = succession::heirs(call, dead);
    for (resource, row, next) in held {
        if holders.living(row.session).is_some() {
            result.held.push((resource.clone(), row));
        } else if row.session.and_then(|dead| heirs.get(&dead)).is_some_and(|heir| *heir != next.session) {
            // Only the holder's heir gets this lease, by its own call or by the sweep.
            result.busy.insert(resource.clone());
        } else {
            free.insert(resource.clone(), exclusive(Some(row)));
        }
    }
    free
}

fn free_permits(
    call: &Call,
    resource: &str,
    next: &First,
    seen: Option<&LeaseRow>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Vec<Free> {
    let Some(declaration) = declaration::of(resource).filter(|known| known.kind != Kind::Group) else {
        return Vec::new();
    };
    let declared = Some((declaration.kind, declaration.slots));
    // A released slot goes to the first in line, whichever sessions hold the others.
    let given_up = seen.filter(|row| letting_go(row) && semaphore::is_one_of_many(resource, &declaration, row.slot));
    if let Some(row) = given_up {
        return vec![Free { slot: row.slot, row: Some(*row), declared, gone: [].into() }];
    }
    let permits = semaphore::survey(call, resource, &declaration, letting_go);
    let (own, left): (Vec<_>, Vec<_>) = permits.left.into_iter().partition(|(_, heir)| *heir == next.session);
    // Only an heir gets the permits that it inherits, by its own call or by the sweep.
    if permits.in_flight || !left.is_empty() {
        result.busy.insert(resource.to_owned());
    }
    result.held.extend(permits.held.into_iter().map(|(row, _)| (resource.to_owned(), row)));
    let of = |(slot, row)| Free { slot, row, declared, gone: permits.gone.clone() };
    let own = own.into_iter().map(|(row, _)| (row.slot, Some(row)));
    // The last slot is granted first.
    permits.free.into_iter().rev().chain(own).map(of).collect()
}

/// Takes G of the sessions in share mode, then reads their rows. Adds the sessions that may be granted a lease, with
/// their slots, to `ready`. Returns the sessions that may not.
pub fn admit(call: &Call, sessions: HashSet<Uuid>, ready: &mut HashMap<Uuid, SlotRef>) -> HashSet<Uuid> {
    let new = sessions.into_iter().filter(|session| !ready.contains_key(session));
    let (open, closed): (Vec<Uuid>, Vec<Uuid>) =
        new.partition(|session| Guard::Grantee(*session).try_lock(Mode::Shared));
    let mut skipped: HashSet<Uuid> = closed.into_iter().chain(open.iter().copied()).collect();
    for row in session::rows(&open) {
        if call.is_eligible(&row)
            && let Ok(Some(at)) = call.slot_of(&row)
        {
            ready.insert(row.session, at);
            skipped.remove(&row.session);
        }
    }
    skipped
}

/// Tries to grant a session each resource for which it is first in line and which no living session holds. So waiters
/// are served even while the worker is stopped.
pub fn judge_places(call: &Call, at: SlotRef) {
    let left = line::left_by(call, at.session());
    let waiting: Vec<Uuid> = left.iter().copied().chain([at.session()]).collect();
    let places = line::places_of(&waiting, limits::MAX_PLACES, 0);
    let resources: BTreeSet<String> = places.into_iter().map(|(resource, _)| resource).collect();
    let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
    let mut result = HandOver { only: Some(at.session()), ..HandOver::default() };
    for page in resources.chunks(limits::GRANT_BATCH) {
        let mut line = line::first_in_line(call, page.to_vec());
        line.inherit(&left, at.session());
        line.first.retain(|_, first| first.session == at.session());
        hand_over_to(call, line.first, &Seen::new(), &|_| false, &mut result);
        pgrx::check_for_interrupts!();
    }
}
