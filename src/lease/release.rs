//! Releasing: how a living holder's leases change hands.
//!
//! A release first keeps new fenced transactions away from the fence, and waits for those that are open: the release
//! comes after the work. It then reads the row again and hands the lease over to the first in line, in its own
//! transaction. If it serves no waiter, it frees the row, which keeps the last fence for a while. A release of more
//! than [`limits::GRANT_BATCH`] resources leaves the hand-over to the worker. A partition goes to its target instead
//! ([`crate::group`]). A forced release does the same for an administrator. See [`crate::lease::fence`] for the locks.

use super::candidate::{Grant, HandOver};
use super::declaration::Kind;
use super::free::free;
use super::handover::{self, Seen};
use super::row::{self, LeaseRow, Leases, Probe, Seat};
use super::{fence, grace, history, line};
use crate::base::error::{Result, log};
use crate::base::{interval, limits};
use crate::call::{Call, Given, enter_writing, names_arg, text_arg};
use crate::pg::guard::Mode;
use crate::pg::order;
use crate::pg::row::TableIterator;
use crate::pg::table::Locked;
use crate::pg::text::{Text, TextArray, role_name};
use crate::session;
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Releases leases from whose fences this transaction has excluded checks: hands over those that are waited for, and
/// frees the rest. `at`: the living session that holds all of them. Returns the leases that it has released.
pub fn release(call: &Call, at: SlotRef, rows: Vec<(String, LeaseRow)>) -> Result<HashSet<Seat>> {
    let leases = Leases::open();
    let mine = |row: &LeaseRow| {
        pgrx::check_for_interrupts!();
        leases.lock(row.tid, true) == Locked::Mine
    };
    let rows: Vec<(String, LeaseRow)> = rows.into_iter().filter(|(_, row)| mine(row)).collect();
    // The holder's places in these lines are older than this release, and would bring the resources back.
    line::leave_behind(call, at.session(), rows.iter().map(|(resource, _)| resource.as_str()));
    let handed_over = hand_over(call, at, &rows)?;
    let seats: HashMap<Seat, LeaseRow> = rows.into_iter().map(|(resource, row)| ((resource, row.slot), row)).collect();
    let left = || seats.iter().filter(|(seat, _)| !handed_over.contains_key(*seat));
    free(call, &left().map(|(seat, row)| (seat.clone(), row.tid)).collect::<Vec<_>>(), false);
    history::freed(call, left().map(|(seat, row)| (seat, row.fence, row.session)), false);
    for (resource, slot) in seats.keys() {
        call.seam().changed(resource, *slot);
    }
    call.seam().revise(at);
    call.seam().count(Counter::Releases, seats.len());
    Ok(seats.into_keys().collect())
}

/// Hands over the leases that this transaction releases: partitions to their targets, others to the first in line.
/// Leaves very many others to the worker.
fn hand_over(call: &Call, at: SlotRef, rows: &[(String, LeaseRow)]) -> Result<HashMap<Seat, Grant>> {
    let fences: HashSet<i64> = rows.iter().map(|(_, row)| row.fence).collect();
    let letting_go = |row: &LeaseRow| fences.contains(&row.fence);
    let is_group = |name: &str| call.declarations().of(name).is_some_and(|known| known.kind == Kind::Group);
    let (mut groups, mut seen) = (BTreeMap::<&str, Vec<LeaseRow>>::new(), Seen::new());
    for (resource, row) in rows {
        if row.declared && (groups.contains_key(resource.as_str()) || is_group(resource)) {
            groups.entry(resource).or_default().push(*row);
        } else {
            seen.insert(resource.clone(), *row);
        }
    }
    let mut result = HandOver::default();
    for (group, rows) in groups {
        Kind::Group.rules().hand_over(call, group, at.session(), &rows, &letting_go, &mut result)?;
    }
    if seen.len() <= limits::GRANT_BATCH {
        let resources = seen.keys().cloned().collect();
        result.granted.extend(handover::hand_over(call, resources, &seen, &letting_go)?.granted);
    } else {
        call.seam().many();
    }
    Ok(result.granted)
}

/// Locks and returns a lease's row that was read before a wait for fenced transactions. If it has changed, looks it up
/// again, without a lock.
fn still_held(leases: &Leases, resource: &str, seen: LeaseRow) -> Option<LeaseRow> {
    if leases.lock_again(resource, &seen) {
        return Some(seen);
    }
    leases.find(resource, seen.slot, true, |row| row.fence == seen.fence)
}

fn is_alive(call: &Call, at: SlotRef) -> bool {
    call.shared.look(at).is_some_and(|standing| standing.alive())
}

/// Releases leases of one session that the caller has read. Returns those that it has released.
fn release_seen(call: &Call, leases: &Leases, at: SlotRef, seen: Vec<(String, LeaseRow)>) -> Result<HashSet<Seat>> {
    // Guards are taken session by session, in the order of the sessions' ids.
    order::begin();
    let mut fences: Vec<i64> = seen.iter().map(|(_, row)| row.fence).collect();
    if fences.len() > limits::GRANT_BATCH {
        // One lock stands for all fences: the lock table has no room for a lock on each.
        call.fencer(at).lock(Mode::Exclusive);
    } else {
        fences.sort_unstable();
        fence::exclude(fences);
    }
    if !is_alive(call, at) {
        return Ok(HashSet::new());
    }
    let still = |(name, row): (String, LeaseRow)| {
        pgrx::check_for_interrupts!();
        let row = still_held(leases, &name, row)?;
        Some((name, row))
    };
    release(call, at, seen.into_iter().filter_map(still).collect())
}

/// Releases slots of a resource, each under its fence. Returns the slots that it has released. If the caller may not
/// release one of them, raises and releases none.
pub fn release_seats(call: &Call, resource: &str, seats: &[(i32, i64)]) -> Result<HashSet<i32>> {
    let leases = Leases::open();
    let mut of_sessions = BTreeMap::<[u8; 16], (SlotRef, Vec<(String, LeaseRow)>)>::new();
    for (slot, fence) in seats {
        pgrx::check_for_interrupts!();
        let Some(row) = leases.find(resource, *slot, false, |row| row.fence == *fence) else { continue };
        let Some(session) = row.session else { continue };
        let seen = match of_sessions.entry(*session.as_bytes()) {
            Entry::Occupied(known) => &mut known.into_mut().1,
            Entry::Vacant(new) => {
                let Some(at) = call.living(session)? else { continue };
                let Some(role) = call.shared.role(at) else { continue };
                session::authorize(call.caller, role, Some(resource))?;
                &mut new.insert((at, Vec::new())).1
            }
        };
        seen.push((resource.to_owned(), row));
    }
    let mut released = HashSet::new();
    for (at, seen) in of_sessions.into_values() {
        released.extend(release_seen(call, &leases, at, seen)?.into_iter().map(|(_, slot)| slot));
    }
    Ok(released)
}

/// Releases the lease of a slot under a fence. Returns whether it has released it.
pub fn release_seat(call: &Call, resource: &str, slot: i32, fence: i64) -> Result<bool> {
    let leases = Leases::open();
    match leases.find(resource, slot, false, |row| row.fence == fence) {
        Some(row) => release_row(call, &leases, resource, row, None),
        None => Ok(false),
    }
}

/// Releases a lease that the caller has read, and ends its session if that is private. `forced`: an administrator's
/// reason to take the lease from its holder. Returns whether it has released the lease.
fn release_row(call: &Call, leases: &Leases, resource: &str, seen: LeaseRow, forced: Option<&str>) -> Result<bool> {
    let held = |row: LeaseRow| -> Result<Option<(LeaseRow, SlotRef)>> {
        let at = row.session.map(|session| call.living(session)).transpose()?.flatten();
        Ok(at.map(|at| (row, at)))
    };
    let Some((_, at)) = held(seen)? else { return Ok(false) };
    if forced.is_none() {
        let Some(role) = call.shared.role(at) else { return Ok(false) };
        session::authorize(call.caller, role, Some(resource))?;
    }
    if call.shared.is_private(at) {
        call.fencer(at).lock(Mode::Exclusive);
    }
    fence::exclude([seen.fence]);
    let Some((row, at)) = still_held(leases, resource, seen).map(held).transpose()?.flatten() else { return Ok(false) };
    let released = !release(call, at, vec![(resource.to_owned(), row)])?.is_empty();
    if let Some(why) = forced.filter(|_| released) {
        let holder = session::row(at.session()).map(|row| row.consumer);
        call.seam().count(Counter::Forces, 1);
        history::forced(call, resource, &row, holder, leases.row(resource, row.slot), why);
    }
    if released
        && call.shared.is_private(at)
        && let Some(private) = session::lock_row(at.session())
    {
        grace::end_without_lease(call, &private, at);
    }
    Ok(released)
}

fn release_fence(call: &Call, resource: &str, fence: i64, forced: Option<&str>) -> Result<bool> {
    let leases = Leases::open();
    match leases.by_fence(resource, fence) {
        Some(row) => release_row(call, &leases, resource, row, forced),
        None => Ok(false),
    }
}

#[pg_extern(schema = "eskit_lease")]
fn lease_release(resource: Option<Text>, fence: Option<i64>, grace: default!(Option<Interval>, "'0'")) -> Result<bool> {
    let shared = enter_writing("lease_release()")?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.given("fence")?;
    let grace_ms = interval::grace_ms("grace", grace.given("grace")?)?;
    let call = Call::open(shared)?;
    if grace_ms == 0 {
        release_fence(&call, &resource, fence, None)
    } else {
        grace::give(&call, &resource, fence, grace_ms)
    }
}

#[pg_extern(schema = "eskit_lease")]
fn lease_force_release(resource: Option<Text>, fence: Option<i64>, why: Option<Text>) -> Result<bool> {
    let shared = enter_writing("lease_force_release()")?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.given("fence")?;
    let why = text_arg("why", why)?;
    // The log line comes before the release, because it explains why calls wait for the holder. The transaction may
    // still be rolled back.
    let call = Call::open(shared)?;
    let by = role_name(call.caller);
    log(format!("role \"{by}\" asks to release resource \"{resource}\" under fence {fence} by force: {why}"));
    release_fence(&call, &resource, fence, Some(&why))
}

#[pg_extern(schema = "eskit_lease")]
fn lease_release_many(
    resources: Option<TextArray>,
    session: Option<Uuid>,
) -> Result<TableIterator<(name!(resource, Text), name!(released, bool))>> {
    let shared = enter_writing("lease_release_many()")?;
    let names = names_arg(resources)?;
    let session = session.given("session")?;
    let call = Call::open(shared)?;
    let mut released = HashSet::new();
    if let Some(at) = call.session(session)?.filter(|at| is_alive(&call, *at)) {
        let leases = Leases::open();
        let mine = |row: &LeaseRow| row.session == Some(session);
        let held = |name: &String| -> Vec<LeaseRow> {
            pgrx::check_for_interrupts!();
            // Most of the named resources are exclusive leases that no transaction is changing; one look is enough for
            // these.
            match leases.glance(name, 0) {
                Probe::Row(row) if !row.declared => Some(row).filter(mine).into_iter().collect(),
                Probe::InFlight(Some(row)) if !row.declared => leases.find(name, 0, false, mine).into_iter().collect(),
                _ => {
                    let slots = row::of_session(name, session).into_iter().map(|row| row.slot);
                    slots.filter_map(|slot| leases.find(name, slot, false, mine)).collect()
                }
            }
        };
        let seen: Vec<(String, LeaseRow)> =
            names.iter().flat_map(|name| held(name).into_iter().map(|row| (name.clone(), row))).collect();
        released = release_seen(&call, &leases, at, seen)?.into_iter().map(|(resource, _)| resource).collect();
    }
    let row = |name: String| {
        let released = released.contains(&name);
        (Text(name), released)
    };
    Ok(TableIterator::of(names.into_iter().map(row).collect()))
}
