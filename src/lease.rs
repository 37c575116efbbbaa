//! Leases: who owns a resource.
//!
//! A lease is a row that names a session, and is owned for as long as that session lives. So nothing is written to keep it, and all of a
//! session's leases end with it. An acquire looks first (the key index, what is not committed included; the holder's slot) and
//! locks only what it may get, so that a refusal writes nothing and nobody ever waits for anybody:
//!
//! | what stands                        | answer                                                        |
//! |------------------------------------|---------------------------------------------------------------|
//! | held by this session               | `already_held`, the same fence; `refenced` on a new timeline  |
//! | held by a living session           | `held`                                                        |
//! | being changed by somebody          | `busy`                                                        |
//! | free or dead, others are in line   | `awaited`                                                     |
//! | free or dead, nobody else is first | `granted`, or `busy` if somebody was faster                   |
//!
//! With `queue` a refused session takes a place, and is told `queued`.

use crate::MAX_NAMES;
use crate::call::{Call, enter, text_arg};
use crate::claim::{LeaseRow, Leases, Probe};
use crate::error::{Error, Result};
use crate::grant::{self, Candidate, timeline};
use crate::guard::{Guard, Mode};
use crate::liveness::clock;
use crate::liveness::databases::Counter;
use crate::liveness::slots::SlotRef;
use crate::liveness::word::State;
use crate::queue::{self, Holders};
use crate::session::{self, Touch, touch, wall_clock};
use crate::spi::{self, Statement, Value};
use crate::text::{Text, TextArray};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::TEXTOID;
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::HashMap;

static RENEW: Statement = Statement::reads(include_str!("../sql/query/lease/renew.sql"), &[TEXTOID]);

/// What an acquire says of one resource.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub fence: Option<i64>,
    pub holder: Option<String>,
    pub reason: &'static str,
}

impl Answer {
    pub fn refused(reason: &'static str) -> Answer {
        Answer { reason, ..Answer::default() }
    }

    fn granted(reason: &'static str, fence: i64, holder: &str) -> Answer {
        Answer { fence: Some(fence), holder: Some(holder.to_owned()), reason }
    }

    pub fn is_granted(&self) -> bool {
        self.fence.is_some()
    }
}

/// Acquires resources for a living session that the caller may use; the answers are in the order of the resources.
pub fn acquire(call: &Call, me: SlotRef, resources: &[String], queue: bool) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(resources.len());
    for batch in resources.chunks(grant::BATCH) {
        answers.extend(acquire_batch(call, me, batch, queue)?);
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
    let mut wanted: Vec<(usize, Option<LeaseRow>)> = Vec::new();
    for (index, probe) in probes.iter().enumerate() {
        answers.push(match (probe, holders.living(session_of(probe))) {
            (Probe::InFlight(_), _) => Answer::refused("busy"),
            (Probe::Row(row), Some((holder, _))) if row.session != Some(me.session()) => {
                Answer { holder: Some(holder.consumer.clone()), ..Answer::refused("held") }
            }
            (Probe::Row(row), Some((holder, _))) if row.timeline == timeline() => {
                Answer::granted("already_held", row.fence, &holder.consumer)
            }
            _ => {
                wanted.push((index, if let Probe::Row(row) = probe { Some(*row) } else { None }));
                Answer::refused("busy")
            }
        });
    }
    if !wanted.is_empty() {
        take(call, me, &leases, resources, wanted, &mut answers)?;
    }
    if queue {
        for (resource, answer) in resources.iter().zip(&mut answers) {
            if matches!(answer.reason, "held" | "awaited" | "busy") {
                answer.reason = line_up(call, me, resource)?;
            }
        }
    }
    Ok(answers)
}

/// Takes a place in the queue, unless the session is not to be granted anything.
fn line_up(call: &Call, me: SlotRef, resource: &str) -> Result<&'static str> {
    spi::require_writes("lease_acquire()")?;
    Ok(match session::row(me.session()) {
        None => "expired",
        Some(row) if row.draining => "draining",
        Some(_) => {
            queue::take_place(call, resource, me.session())?;
            "queued"
        }
    })
}

/// Takes what is free or dead, unless others are in line for it. A row that is this session's own is to get a new fence.
fn take(
    call: &Call,
    me: SlotRef,
    leases: &Leases,
    resources: &[String],
    mut wanted: Vec<(usize, Option<LeaseRow>)>,
    answers: &mut [Answer],
) -> Result<()> {
    spi::require_writes("lease_acquire()")?;
    // The session cannot end under the grant: it is looked at after the lock that its end wants.
    let open = Guard::Grantee(me.session()).try_lock(Mode::Shared);
    let state = call.shared.look(me).map(|standing| standing.state);
    let row = session::row(me.session());
    let refusal = match (&row, state) {
        _ if !open => Some("closing"),
        (_, Some(State::Frozen)) => Some("closing"),
        (Some(row), Some(State::Alive)) => row.draining.then_some("draining"),
        _ => Some("expired"),
    };
    let Some(row) = row.filter(|_| refusal.is_none()) else {
        for (index, _) in wanted {
            answers[index].reason = refusal.unwrap_or("expired");
        }
        return Ok(());
    };
    let names = |wanted: &[(usize, Option<LeaseRow>)]| {
        wanted.iter().map(|(index, _)| resources[*index].as_str()).collect::<Vec<_>>()
    };
    let first = queue::first_in_line(call, names(&wanted), &[]);
    let mine = |row: &Option<LeaseRow>| row.is_some_and(|row| row.session == Some(me.session()));
    wanted.retain(|(index, lease)| {
        let barging = first.get(&resources[*index]).is_some_and(|first| *first != me.session());
        if barging && !mine(lease) {
            answers[*index].reason = "awaited";
        }
        mine(lease) || !barging
    });
    let mut places = if first.values().any(|first| *first == me.session()) {
        queue::places(call.db(), names(&wanted), &vec![me.session(); wanted.len()])
    } else {
        HashMap::new()
    };
    let candidate = |(index, lease): &(usize, Option<LeaseRow>)| {
        let resource = resources[*index].clone();
        let places = places.remove(&(resource.clone(), me.session())).unwrap_or_default();
        Candidate { resource, row: *lease, released: false, grantee: me, places }
    };
    let fences = grant::grant(call, leases, wanted.iter().map(candidate).collect());
    for (index, lease) in wanted {
        let reason = if mine(&lease) { "refenced" } else { "granted" };
        match fences.get(&resources[index]) {
            Some(fence) => answers[index] = Answer::granted(reason, *fence, &row.consumer),
            // A fenced transaction of the dead holder may be in the way: whoever waits is served when it ends.
            None => call.seam().judge(&resources[index]),
        }
    }
    Ok(())
}

pub fn columns(
    answer: Answer,
    trust_ms: Option<i32>,
) -> (bool, Option<i64>, Option<i32>, Option<Text>, Option<i32>, Text) {
    let granted = answer.is_granted();
    let reason = Text::from(answer.reason);
    (granted, answer.fence, granted.then_some(0), answer.holder.map(Text), trust_ms.filter(|_| granted), reason)
}

/// A heartbeat for the session, and its slot if it may acquire; why not, otherwise.
pub fn acquirer(touch: &Touch) -> std::result::Result<SlotRef, &'static str> {
    match (touch.refusal(), touch.at) {
        (None, Some(at)) => Ok(at),
        (refusal, _) => Err(refusal.unwrap_or("unknown_session")),
    }
}

#[pg_extern(schema = "eskit_lease")]
fn lease_acquire(
    resource: Option<Text>,
    session: Option<Uuid>,
    queue: default!(Option<bool>, "false"),
) -> Result<
    TableIterator<
        'static,
        (
            name!(granted, bool),
            name!(fence, Option<i64>),
            name!(slot, Option<i32>),
            name!(holder, Option<Text>),
            name!(trust_ms, Option<i32>),
            name!(reason, Text),
        ),
    >,
> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let queue = queue.ok_or(Error::Null("queue"))?;
    let touch = touch(shared, session.ok_or(Error::Null("session"))?)?;
    let answer = match acquirer(&touch) {
        Ok(me) => acquire(&Call::open(shared)?, me, &[resource], queue)?.pop().unwrap_or_default(),
        Err(refusal) => Answer::refused(refusal),
    };
    Ok(TableIterator::once(columns(answer, touch.trust_ms())))
}

/// The distinct names of an array, in order.
pub fn names(resources: Option<TextArray>) -> Result<Vec<String>> {
    let names = resources.ok_or(Error::Null("resources"))?.0;
    let given = names.len();
    if given > MAX_NAMES {
        return Err(Error::Number { what: "resources", given: given as i64, min: 0, max: MAX_NAMES as i64 }.into());
    }
    let mut names = names.into_iter().map(|name| text_arg("resource", name)).collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[pg_extern(schema = "eskit_lease")]
fn lease_acquire_many(
    resources: Option<TextArray>,
    session: Option<Uuid>,
) -> Result<
    TableIterator<
        'static,
        (
            name!(resource, Text),
            name!(granted, bool),
            name!(fence, Option<i64>),
            name!(slot, Option<i32>),
            name!(holder, Option<Text>),
            name!(trust_ms, Option<i32>),
            name!(reason, Text),
        ),
    >,
> {
    let shared = enter()?;
    let names = names(resources)?;
    let touch = touch(shared, session.ok_or(Error::Null("session"))?)?;
    let answers = match acquirer(&touch) {
        Ok(me) => acquire(&Call::open(shared)?, me, &names, false)?,
        Err(refusal) => vec![Answer::refused(refusal); names.len()],
    };
    let trust_ms = touch.trust_ms();
    Ok(TableIterator::new(names.into_iter().zip(answers).map(move |(name, answer)| {
        let (granted, fence, slot, holder, trust_ms, reason) = columns(answer, trust_ms);
        (Text(name), granted, fence, slot, holder, trust_ms, reason)
    })))
}

#[pg_extern(schema = "eskit_lease")]
fn lease_renew(
    resource: Option<Text>,
    fence: Option<i64>,
) -> Result<
    TableIterator<
        'static,
        (
            name!(held, bool),
            name!(trust_ms, Option<i32>),
            name!(expires_at, Option<TimestampWithTimeZone>),
            name!(reason, Text),
        ),
    >,
> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.ok_or(Error::Null("fence"))?;
    let read =
        |row: spi::Row| (row.get::<Uuid>(1), row.long(2), row.int(3), row.get::<Text>(4), row.get(5) == Some(true));
    let found = Call::open(shared)?.db().run(&RENEW, vec![Value::Text(&resource)], read).pop();
    let refused = |reason: &str| Ok(TableIterator::once((false, None, None, Text::from(reason))));
    let (session, fenced_on) = match found {
        Some((Some(session), current, on, ..)) if current == fence => (session, on),
        Some((None, current, .., true)) if current == fence => return refused("expired"),
        Some((None, current, ..)) if current == fence => return refused("released"),
        Some((Some(_), current, _, Some(holder), _)) if current > fence => {
            return refused(&format!("superseded by {}", &*holder));
        }
        Some((_, current, ..)) if current > fence => return refused("superseded"),
        _ => return refused("unknown"),
    };
    let touch = touch(shared, session)?;
    let Some(standing) = touch.standing.filter(|standing| standing.alive()) else {
        return refused("expired");
    };
    let reason = if fenced_on == timeline() { "held" } else { "refence" };
    let expires_at = wall_clock(standing.left());
    Ok(TableIterator::once((true, Some(clock::trust_ms(standing.left())), expires_at, Text::from(reason))))
}
