//! Acquiring: which session owns a resource, or a permit of a semaphore.
//!
//! A lease is a row that names a session, and the session owns it for as long as it lives. So no call writes to keep a
//! lease, and all leases of a session end with it. An acquire first looks at the row, uncommitted changes included, and
//! at the holder's slot. It locks only what it may get. So a refusal writes nothing, and no acquire waits for another
//! session:
//!
//! | the resource is                         | answer                                                        |
//! |-----------------------------------------|---------------------------------------------------------------|
//! | held by this session                    | `already_held`, the same fence; `refenced`, a new one (see [`crate::lease::refence`]) |
//! | in grace of this session                | `already_held`, the same fence (see [`crate::lease::grace`])  |
//! | in grace of a session that this one took over | `granted`, a new fence; `busy` while work under the old one is open |
//! | held by a living session, or all its permits are | `held`                                               |
//! | being changed by another transaction    | `busy`                                                        |
//! | free or dead; others are in line, or the dead holder has an heir | `awaited`                            |
//! | free or dead; no other session is first | `granted`, or `busy` if another session was faster            |
//! | free or dead, and a bridge              | `bridged` (see [`crate::bridge`])                             |
//!
//! Other answers depend on the session alone:
//!
//! | the session                             | answer                                                        |
//! |-----------------------------------------|---------------------------------------------------------------|
//! | does not live                           | `expired`, `unknown_session`, before any look                 |
//! | is being ended                          | `closing`, before any look; or before a grant, if the end began after the look |
//! | drains, and would get a lease or a place | `draining`                                                   |
//! | has no slot, and would get a lease      | `sessions_full` (see [`crate::shmem::stand_in`])              |
//!
//! Where only declared names may be leased, 42704 is raised for another name (see [`crate::lease::names`]).
//!
//! With `queue`, a refused session takes a place in line and is told `queued`. A refused session that already has a
//! place is told `queued` even without `queue`, unless it drains or an open transaction gives that place up. If a
//! session that already holds the lease passes `queue`, it gives up any place that it has in the line.

mod grantee;
mod look;
mod take;

pub use grantee::{SESSIONS_FULL, grantee};

use super::answer::Answer;
use super::row::{self, Leases, Probe};
use super::{grace, line, names, refused};
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::pg::{catalog, spi};
use crate::session;
use crate::session::holders::Holders;
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use look::{Look, Wanted, look_at_lease, look_at_permits};
use std::cell::LazyCell;
use std::ffi::CStr;
use take::Taking;

/// The tables that a look at a resource may read. A grant or a place in line also uses those of [`GRANTED_BY`].
const LOOKED_INTO: [&CStr; 3] = [c"_leases", c"_sessions", c"_declarations"];
const GRANTED_BY: [&CStr; 3] = [c"_waiters", c"_history", catalog::FENCES];

/// Locks all tables that a look at a resource needs. Returns false if one is locked in a mode that conflicts, as by
/// VACUUM FULL.
pub fn can_look() -> bool {
    catalog::lock_all(&LOOKED_INTO) && (!names::are_required() || catalog::lock_all(&[names::TABLE]))
}

/// Locks the further tables that a grant or a place in line needs. Returns false under the same condition.
pub fn can_take() -> bool {
    catalog::lock_all(&GRANTED_BY)
}

/// Acquires resources for a living session that the caller may use. The answers are in the order of the resources.
pub fn acquire(call: &Call, me: SlotRef, resources: &[String], queue: bool) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(resources.len());
    if !can_look() {
        answers.resize(resources.len(), Answer::refused("busy"));
    } else {
        for batch in resources.chunks(limits::GRANT_BATCH) {
            answers.extend(acquire_batch(call, me, batch, queue)?);
        }
    }
    debug_assert_eq!(answers.len(), resources.len());
    let refusals = answers.iter().filter(|answer| !answer.is_granted()).count();
    call.database.add(Counter::Refusals, refusals as u64);
    refused::note(call.shared, call.home, me.session(), resources, &answers);
    Ok(answers)
}

/// Acquires one resource for a living session that the caller may use.
pub fn acquire_one(call: &Call, me: SlotRef, resource: String, queue: bool) -> Result<Answer> {
    let answer = acquire(call, me, &[resource], queue)?.pop();
    Ok(answer.unwrap_or_else(|| pgrx::error!("eskit_lease has no answer to an acquire")))
}

fn acquire_batch(call: &Call, me: SlotRef, resources: &[String], queue: bool) -> Result<Vec<Answer>> {
    let leases = Leases::open();
    let probes: Vec<Probe> = resources.iter().map(|resource| leases.glance(resource, 0)).collect();
    let session_of = |probe: &Probe| match probe {
        Probe::Row(row) => row.session,
        _ => None,
    };
    let holders = Holders::of(call, probes.iter().filter_map(session_of));
    let mut answers: Vec<Answer> = Vec::with_capacity(resources.len());
    let mut wanted: Vec<(usize, Wanted)> = Vec::new();
    let plain = LazyCell::new(|| call.declarations().none());
    for (index, (probe, resource)) in probes.iter().zip(resources).enumerate() {
        // There may be 100,000 names, and each may have 255 beginnings that are declared.
        pgrx::check_for_interrupts!();
        let declaration = match probe {
            Probe::Row(row) | Probe::InFlight(Some(row)) if !row.declared => None,
            _ if *plain => None,
            _ => call.declarations().of(resource),
        };
        let look = match declaration {
            Some(declaration) => look_at_permits(call, me, resource, &declaration)?,
            None => {
                let look = look_at_lease(call, me, probe, holders.living(session_of(probe)));
                if !look.is_own() {
                    names::require(call, resource, Some(me.session()))?;
                }
                look
            }
        };
        answers.push(match look {
            Look::Answer(answer) => answer,
            Look::Wanted(want) => {
                wanted.push((index, want));
                Answer::refused("busy")
            }
        });
    }
    if (queue || !wanted.is_empty()) && !can_take() {
        // A session that asked for a place in line gets none now. So it is told `busy`: another reason would suggest
        // that it has one.
        let waits = |answer: &&mut Answer| queue && matches!(answer.reason, "held" | "awaited" | "bridged");
        answers.iter_mut().filter(waits).for_each(|answer| *answer = Answer::refused("busy"));
        return Ok(answers);
    }
    if !wanted.is_empty() {
        Taking { call, me, leases: &leases, resources, wanted, answers: &mut answers }.take()?;
    }
    if queue {
        for (resource, answer) in resources.iter().zip(&mut answers) {
            match answer.reason {
                "held" | "awaited" | "busy" | "bridged" => line_up(call, me, resource, answer)?,
                // A holder must have no place in line: when it releases the resource, the place would bring the
                // resource back unasked.
                "already_held"
                    if line::waits(call, resource, me.session()) && spi::require_writes("lease_acquire()").is_ok() =>
                {
                    line::inherit_left(call, resource, me.session());
                    let own = row::of_session(resource, me.session()).into_iter();
                    line::leave_own(call, own.map(|row| (resource.clone(), row)).collect());
                }
                _ => (),
            }
        }
    } else {
        tell_of_places(me, resources, &mut answers);
    }
    Ok(answers)
}

/// Changes the answer to a refused session to `queued` if the session already has a place, although this call did not
/// ask for one. Waits for no lock on the table of places.
fn tell_of_places(me: SlotRef, resources: &[String], answers: &mut [Answer]) {
    let is_refused = |answer: &Answer| matches!(answer.reason, "held" | "awaited" | "busy" | "bridged");
    // Usually the session has no place in any line.
    let may_wait = answers.iter().any(is_refused) && catalog::lock_all(&[line::TABLE]) && line::may_wait(me.session());
    // A draining session is granted nothing through its places. Versions up to 0.2.0 did not report places.
    let counts = || session::row(me.session()).is_some_and(|row| !row.draining) && catalog::has_objects_of_today();
    if may_wait && counts() {
        let refused = resources.iter().zip(answers).filter(|(_, answer)| is_refused(answer));
        refused
            .filter(|(resource, _)| line::stays_in_line(resource, me.session()))
            .for_each(|(_, answer)| answer.reason = "queued");
    }
}

/// Puts a refused session in line and sets its answer, unless the session may be granted nothing or holds the resource
/// by now.
fn line_up(call: &Call, me: SlotRef, resource: &String, answer: &mut Answer) -> Result<()> {
    spi::require_writes("lease_acquire()")?;
    // A grant takes the same guard first. Without this guard the session could end and be swept before its place is
    // visible, and the place would stay.
    if !Guard::Grantee(me.session()).try_lock(Mode::Shared) {
        answer.reason = "closing";
        return Ok(());
    }
    match session::row(me.session()) {
        None => answer.reason = "expired",
        Some(row) if row.draining => answer.reason = "draining",
        Some(_) => {
            line::inherit_left(call, resource, me.session());
            let ahead = answer.reason == "busy" && grace::waits_ahead(call, resource, me.session());
            if !ahead && !line::stays_in_line(resource, me.session()) {
                // The session may have just been granted the resource and lost its place. A new place would bring the
                // resource back, unasked, when the session releases it.
                let served = !row::of_session(resource, me.session()).is_empty();
                if served
                    && let Some(now) = acquire_batch(call, me, std::slice::from_ref(resource), false)?.pop()
                    && now.is_granted()
                {
                    *answer = now;
                    return Ok(());
                }
                if !line::take_place(call, resource, me.session())? {
                    answer.reason = "busy";
                    return Ok(());
                }
                // A holder that releases the resource meanwhile does not see this new place, so the worker must judge
                // the resource. An old place needs no judging.
                call.seam().judge(resource);
            }
            answer.reason = "queued";
        }
    }
    Ok(())
}
