//! Acquiring: who owns a resource, or a permit of a semaphore.
//!
//! A lease is a row that names a session, and is owned for as long as that session lives. So nothing is written to keep
//! it, and all of a session's leases end with it. An acquire looks first (the key index, what is not committed
//! included; the holder's slot) and locks only what it may get, so that a refusal writes nothing and nobody ever waits
//! for anybody:
//!
//! | what stands                             | answer                                                        |
//! |-----------------------------------------|---------------------------------------------------------------|
//! | held by this session                    | `already_held`, the same fence; `refenced` for one of before  |
//! | in grace of this session                | `already_held`, the same fence (see [`crate::lease::grace`])  |
//! | in grace of a session that this one took over | `granted`, a new fence; `busy` while work under the old one is open |
//! | held by a living session; every permit is | `held`                                                      |
//! | being changed by somebody               | `busy`                                                        |
//! | free or dead, others are in line or a successor lives | `awaited`                                                     |
//! | free or dead, nobody else is first      | `granted`, or `busy` if somebody was faster                   |
//! | free or dead, and a bridge              | `bridged` (see [`crate::bridge`])                             |
//!
//! With `queue` a refused session takes a place, and is told `queued`; one that holds the lease gives up what place it
//! has.

mod look;

use super::grant::{self, Candidate};
use super::row::{self, Leases, Probe};
use super::{grace, line};
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::pg::{catalog, spi};
use crate::session::holders::{Holder, Holders};
use crate::session::{self, SessionRow};
use crate::shmem::databases::Counter;
use crate::shmem::slots::SlotRef;
use crate::shmem::word::State;
use look::{Look, Wanted, look_at_lease, look_at_permits};
use std::cell::LazyCell;
use std::collections::HashMap;
use std::ffi::CStr;

/// What an acquire says of one resource.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub fence: Option<i64>,
    pub slot: i32,
    pub holder: Option<String>,
    pub reason: &'static str,
}

impl Answer {
    pub fn refused(reason: &'static str) -> Answer {
        Answer { reason, ..Answer::default() }
    }

    pub fn held_by(holder: &Holder) -> Answer {
        Answer { holder: Some(holder.consumer.clone()), ..Answer::refused("held") }
    }

    fn granted(reason: &'static str, slot: i32, fence: i64, holder: &str) -> Answer {
        Answer { fence: Some(fence), slot, holder: Some(holder.to_owned()), reason }
    }

    pub fn is_granted(&self) -> bool {
        self.fence.is_some()
    }
}

/// The tables that every look at a resource may read, and what every grant reads, writes or draws from as well.
const LOOKED_INTO: [&CStr; 3] = [c"_leases", c"_sessions", c"_declarations"];
const GRANTED_BY: [&CStr; 3] = [c"_waiters", c"_history", catalog::FENCES];

/// Whether nobody, such as VACUUM FULL, has the tables locked that a look at a resource needs.
pub fn can_look() -> bool {
    catalog::lock_all(&LOOKED_INTO)
}

/// The same for a grant, or a place in line.
pub fn can_take() -> bool {
    catalog::lock_all(&GRANTED_BY)
}

/// Acquires resources for a living session that the caller may use; the answers are in the order of the resources.
pub fn acquire(call: &Call, me: SlotRef, resources: &[String], queue: bool) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(resources.len());
    if !can_look() {
        answers.resize(resources.len(), Answer::refused("busy"));
    } else {
        for batch in resources.chunks(limits::GRANT_BATCH) {
            answers.extend(acquire_batch(call, me, batch, queue)?);
        }
    }
    let refused = answers.iter().filter(|answer| !answer.is_granted()).count();
    call.database.add(Counter::Refusals, refused as u64);
    Ok(answers)
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
        let declaration = match probe {
            Probe::Row(row) | Probe::InFlight(Some(row)) if !row.declared => None,
            _ if *plain => None,
            _ => call.declarations().of(resource),
        };
        let look = match declaration {
            Some(declaration) => look_at_permits(call, me, resource, &declaration)?,
            None => look_at_lease(call, me, probe, holders.living(session_of(probe))),
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
        // Whoever is to wait has no place in line now, and has to be told so.
        let waits = |answer: &&mut Answer| queue && matches!(answer.reason, "held" | "awaited" | "bridged");
        answers.iter_mut().filter(waits).for_each(|answer| *answer = Answer::refused("busy"));
        return Ok(answers);
    }
    if !wanted.is_empty() {
        take(call, me, &leases, resources, wanted, &mut answers)?;
    }
    if queue {
        for (resource, answer) in resources.iter().zip(&mut answers) {
            match answer.reason {
                "held" | "awaited" | "busy" | "bridged" => line_up(call, me, resource, answer)?,
                // It waits no more: with a place it would get the resource again when it lets go of it, unasked.
                "already_held"
                    if line::has_place(resource, me.session()) && spi::require_writes("lease_acquire()").is_ok() =>
                {
                    let own = row::of_session(resource, me.session()).into_iter();
                    line::leave_own(call, own.map(|row| (resource.clone(), row)).collect());
                }
                _ => (),
            }
        }
    }
    Ok(answers)
}

/// Has a refused session wait in the queue, unless it is not to be granted anything.
fn line_up(call: &Call, me: SlotRef, resource: &String, answer: &mut Answer) -> Result<()> {
    spi::require_writes("lease_acquire()")?;
    // As before a grant: else it could end and be swept while nobody sees its place yet, which would then stay.
    if !Guard::Grantee(me.session()).try_lock(Mode::Shared) {
        answer.reason = "closing";
        return Ok(());
    }
    match session::row(me.session()) {
        None => answer.reason = "expired",
        Some(row) if row.draining => answer.reason = "draining",
        Some(_) => {
            let ahead = answer.reason == "busy" && grace::waits_ahead(call, resource, me.session());
            if !ahead && !line::has_place(resource, me.session()) {
                // It may have had one, and just been served: with another it would get the resource again when it lets
                // go of it, unasked.
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
                // Whoever lets go of the resource meanwhile does not see this place yet. One that was there is no news.
                call.seam().judge(resource);
            }
            answer.reason = "queued";
        }
    }
    Ok(())
}

/// What a session that has no slot is told when it asks for something new (see [`crate::shmem::stand_in`]).
pub const SESSIONS_FULL: &str = "sessions_full";

/// The session's row if it may be granted something new, and cannot end under the grant: it is looked at after the lock
/// that its end wants. Why not, otherwise.
pub fn grantee(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if me.is_stand_in() { Err(SESSIONS_FULL) } else { holder(call, me) }
}

/// The same for what is the session's own already.
fn holder(call: &Call, me: SlotRef) -> std::result::Result<SessionRow, &'static str> {
    if !Guard::Grantee(me.session()).try_lock(Mode::Shared) {
        return Err("closing");
    }
    match (session::row(me.session()), call.shared.look(me).map(|standing| standing.state)) {
        (_, Some(State::Frozen)) => Err("closing"),
        (Some(row), Some(State::Alive)) if row.draining => Err("draining"),
        (Some(row), Some(State::Alive)) => Ok(row),
        _ => Err("expired"),
    }
}

/// Takes what is free or dead, unless others are in line for it.
fn take(
    call: &Call,
    me: SlotRef,
    leases: &Leases,
    resources: &[String],
    mut wanted: Vec<(usize, Wanted)>,
    answers: &mut [Answer],
) -> Result<()> {
    spi::require_writes("lease_acquire()")?;
    wanted.retain(|(index, want)| {
        let may = want.own || !me.is_stand_in();
        if !may {
            answers[*index].reason = SESSIONS_FULL;
        }
        may
    });
    let row = match holder(call, me) {
        Ok(row) => row,
        Err(refusal) => {
            for (index, _) in wanted {
                answers[index].reason = refusal;
            }
            return Ok(());
        }
    };
    let names = |wanted: &[(usize, Wanted)], which: fn(&Wanted) -> bool| {
        let those = wanted.iter().filter(|(_, want)| which(want));
        those.map(|(index, _)| resources[*index].as_str()).collect::<Vec<_>>()
    };
    let mut first = line::first_in_line(call, names(&wanted, |_| true)).first;
    wanted.retain(|(index, want)| {
        let barging = first.get(&resources[*index]).is_some_and(|first| first.session != me.session());
        if barging && !want.own {
            answers[*index].reason = "awaited";
        }
        want.own || !barging
    });
    wanted.retain(|(index, want)| match (want.choices.first(), want.takes_over) {
        (Some((slot, Some(lease))), _) if want.takes_back => {
            if grace::take_back(call, leases, me, &resources[*index], lease) {
                answers[*index] = Answer::granted("already_held", *slot, lease.fence, &row.consumer);
            }
            false
        }
        (_, Some(lease)) => grace::reserve(call, &lease),
        _ => true,
    });
    first.retain(|_, first| first.session == me.session());
    let mut places = line::places_of_first(&first);
    let taken_over: Vec<&str> = names(&wanted, |want| want.takes_over.is_some());
    for ((resource, _), own) in line::places(&taken_over, &vec![me.session(); taken_over.len()]) {
        places.insert(resource, own);
    }
    // Of a semaphore there may be another permit when somebody was faster.
    while !wanted.is_empty() {
        let candidate = |(index, want): &mut (usize, Wanted)| {
            let resource = resources[*index].clone();
            let (slot, row) = want.choices.pop()?;
            let places = places.get(&resource).cloned().unwrap_or_default();
            let (declared, gone, inherited) = (want.declared, want.gone.clone(), want.takes_over.is_some());
            Some(Candidate { resource, slot, declared, row, released: inherited, inherited, grantee: me, places, gone })
        };
        let grants = grant::grant(call, leases, wanted.iter_mut().filter_map(candidate).collect());
        let mut granted: HashMap<&str, (i32, i64)> =
            grants.iter().map(|((resource, slot), grant)| (resource.as_str(), (*slot, grant.fence))).collect();
        wanted.retain(|(index, want)| match granted.remove(resources[*index].as_str()) {
            Some((slot, fence)) => {
                let reason = if want.refences { "refenced" } else { "granted" };
                answers[*index] = Answer::granted(reason, slot, fence, &row.consumer);
                places.remove(&resources[*index]);
                if let Some(lease) = want.takes_over {
                    grace::end(call, &lease);
                }
                false
            }
            None if want.choices.is_empty() => {
                if let Some(lease) = want.takes_over {
                    grace::leave(&lease);
                }
                // A fenced transaction of the dead holder may be in the way: who waits is served when it ends. Without
                // a place nobody does.
                if places.contains_key(&resources[*index]) {
                    call.seam().in_vain(&resources[*index]);
                }
                false
            }
            None => true,
        });
    }
    Ok(())
}
