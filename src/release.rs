//! Releasing: how a living holder's leases change hands.
//!
//! A release first keeps fenced transactions away from the fence, and waits for those that are open: that is what a release after the
//! work means. It then looks again, hands over to the first in line in its own transaction, and otherwise keeps the row with its
//! last fence for a while. Force is the same in an administrator's name. See [`crate::fence`] for what is kept away from what.

use crate::call::{Call, enter, text_arg};
use crate::claim::{LeaseRow, Leases, Probe};
use crate::error::{Error, Result};
use crate::guard::{Guard, Mode};
use crate::lease::names;
use crate::liveness::databases::Counter;
use crate::liveness::slots::SlotRef;
use crate::spi::{self, Statement, Value};
use crate::table::Locked;
use crate::text::{Text, TextArray};
use crate::{fence, grant, queue, session};
use pgrx::pg_sys::{BOOLOID, TEXTARRAYOID};
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::{HashMap, HashSet};

static RELEASE: Statement = Statement::writes(include_str!("../sql/query/lease/release.sql"), &[TEXTARRAYOID, BOOLOID]);

/// Lets go of leases whose fences this transaction has excluded: hands over what is waited for, and frees the rest. `at`: their
/// holder, which lives. Gives those that were still held.
pub fn release(call: &Call, at: SlotRef, rows: Vec<(String, LeaseRow)>) -> Result<HashSet<String>> {
    let leases = Leases::open();
    let mine = |row: &LeaseRow| leases.lock(row.tid, true) == Locked::Mine;
    let rows: HashMap<String, LeaseRow> = rows.into_iter().filter(|(_, row)| mine(row)).collect();
    let fences: HashSet<i64> = rows.values().map(|row| row.fence).collect();
    let handed_over = if rows.len() <= grant::BATCH {
        queue::hand_over(call, rows.keys().cloned().collect(), &|row| fences.contains(&row.fence))?.granted
    } else {
        call.seam().many();
        HashSet::new()
    };
    free(call, rows.keys().filter(|resource| !handed_over.contains(*resource)).map(String::as_str).collect(), false);
    for resource in rows.keys() {
        call.seam().changed(resource);
    }
    call.seam().revise(at);
    call.database.add(Counter::Releases, rows.len() as u64);
    Ok(rows.into_keys().collect())
}

/// Marks the rows of leases, which the caller has locked, as released, or as taken from sessions that had expired.
pub fn free(call: &Call, resources: Vec<&str>, expired: bool) {
    if !resources.is_empty() {
        call.db().execute(&RELEASE, vec![Value::Texts(resources), Value::Bool(expired)]);
    }
}

/// The row of a lease for which `mine` holds, also while somebody is changing it: that may come to nothing. With `wait`, only once it
/// has come to something.
fn find(leases: &Leases, resource: &str, wait: bool, mine: impl Fn(&LeaseRow) -> bool) -> Option<LeaseRow> {
    loop {
        match leases.probe(resource, 0) {
            Probe::Row(row) => return Some(row).filter(&mine),
            Probe::InFlight(Some(row)) if mine(&row) && wait => {
                leases.lock(row.tid, true);
                pgrx::check_for_interrupts!();
            }
            Probe::InFlight(Some(row)) => return Some(row).filter(&mine),
            Probe::InFlight(None) | Probe::Absent => return None,
        }
    }
}

/// Releases the lease under a fence, and with it the private session of lock_acquire. Whether it was held.
fn release_fence(call: &Call, resource: &str, fence: i64, authorize: bool) -> Result<bool> {
    let leases = Leases::open();
    let held = |wait| -> Result<Option<(LeaseRow, SlotRef)>> {
        let Some(row) = find(&leases, resource, wait, |row| row.fence == fence) else { return Ok(None) };
        let at = row.session.map(|session| call.living(session)).transpose()?.flatten();
        Ok(at.map(|at| (row, at)))
    };
    let Some((_, at)) = held(false)? else { return Ok(false) };
    if authorize {
        session::authorize(call.caller, call.shared.role(at))?;
    }
    let private = call.shared.is_private(at);
    if private {
        Guard::Fencer(at.session()).lock(Mode::Exclusive);
    }
    fence::exclude([fence]);
    // After the wait, what was read before it means nothing.
    let Some((row, at)) = held(true)? else { return Ok(false) };
    let released = release(call, at, vec![(resource.to_owned(), row)])?;
    if private && !released.is_empty() && session::lock_row(at.session()).is_some() {
        session::end(call, at)?;
    }
    Ok(!released.is_empty())
}

#[pg_extern(schema = "eskit_lease")]
fn lease_release(resource: Option<Text>, fence: Option<i64>) -> Result<bool> {
    let shared = enter()?;
    spi::require_writes("lease_release()")?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.ok_or(Error::Null("fence"))?;
    release_fence(&Call::open(shared)?, &resource, fence, true)
}

#[pg_extern(schema = "eskit_lease")]
fn lease_force_release(resource: Option<Text>, fence: Option<i64>, why: Option<Text>) -> Result<bool> {
    let shared = enter()?;
    spi::require_writes("lease_force_release()")?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.ok_or(Error::Null("fence"))?;
    let why = text_arg("why", why)?;
    // Said before it is done, so that what waits for the holder is explained; the transaction may still be rolled back.
    log!("eskit_lease: asked to release resource \"{resource}\" under fence {fence} by force: {why}");
    release_fence(&Call::open(shared)?, &resource, fence, false)
}

#[pg_extern(schema = "eskit_lease")]
fn lease_release_many(
    resources: Option<TextArray>,
    session: Option<Uuid>,
) -> Result<TableIterator<'static, (name!(resource, Text), name!(released, bool))>> {
    let shared = enter()?;
    spi::require_writes("lease_release_many()")?;
    let names = names(resources)?;
    let session = session.ok_or(Error::Null("session"))?;
    let call = Call::open(shared)?;
    let alive = |at: &SlotRef| shared.look(*at).is_some_and(|standing| standing.alive());
    let mut released = HashSet::new();
    if let Some(at) = call.session(session)?.filter(alive) {
        let leases = Leases::open();
        let held = |wait| {
            let row = |name: &String| find(&leases, name, wait, |row| row.session == Some(session));
            names.iter().filter_map(|name| Some((name.clone(), row(name)?))).collect::<Vec<_>>()
        };
        let mut fences: Vec<i64> = held(false).into_iter().map(|(_, row)| row.fence).collect();
        if fences.len() > grant::BATCH {
            // One lock for all: the lock table has no room for one each.
            Guard::Fencer(session).lock(Mode::Exclusive);
        } else {
            fences.sort_unstable();
            fence::exclude(fences);
        }
        if alive(&at) {
            released = release(&call, at, held(true))?;
        }
    }
    Ok(TableIterator::new(names.into_iter().map(move |name| {
        let released = released.contains(&name);
        (Text(name), released)
    })))
}
