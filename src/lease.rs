//! The SQL functions of leases; [`crate::acquire`] says who gets one.

use crate::MAX_NAMES;
use crate::acquire::{Answer, acquire};
use crate::call::{Call, enter, text_arg};
use crate::error::{Error, Result};
use crate::fence::{self, Fate};
use crate::grant::timeline;
use crate::liveness::clock;
use crate::liveness::slots::SlotRef;
use crate::row;
use crate::session::{self, Touch, touch, touch_holder, wall_clock};
use crate::text::{Text, TextArray};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use pgrx::{Uuid, name};

pub fn columns(
    answer: Answer,
    trust_ms: Option<i32>,
) -> (bool, Option<i64>, Option<i32>, Option<Text>, Option<i32>, Text) {
    let granted = answer.is_granted();
    let reason = Text::from(answer.reason);
    (
        granted,
        answer.fence,
        granted.then_some(answer.slot),
        answer.holder.map(Text),
        trust_ms.filter(|_| granted),
        reason,
    )
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
    row::TableIterator<(
        name!(granted, bool),
        name!(fence, Option<i64>),
        name!(slot, Option<i32>),
        name!(holder, Option<Text>),
        name!(trust_ms, Option<i32>),
        name!(reason, Text),
    )>,
> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let queue = queue.ok_or(Error::Null("queue"))?;
    let touch = touch(shared, session.ok_or(Error::Null("session"))?)?;
    let answer = match acquirer(&touch) {
        Ok(me) => acquire(&Call::open(shared)?, me, &[resource], queue)?.pop().unwrap_or_default(),
        Err(refusal) => Answer::refused(refusal),
    };
    Ok(row::TableIterator::once(columns(answer, touch.trust_ms())))
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
    row::TableIterator<(
        name!(held, bool),
        name!(trust_ms, Option<i32>),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(reason, Text),
    )>,
> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.ok_or(Error::Null("fence"))?;
    let refused = |reason: &str| Ok(row::TableIterator::once((false, None, None, Text::from(reason))));
    let (session, fenced_on) = match fence::fate(&resource, None, fence) {
        Fate::Current { session, row } => (session, row.timeline),
        Fate::Expired => return refused("expired"),
        Fate::Released => return refused("released"),
        Fate::Superseded(newer) => {
            let newer = newer.and_then(|row| session::row(row.session?));
            return refused(&newer.map_or("superseded".to_owned(), |by| format!("superseded by {}", by.consumer)));
        }
        Fate::Unknown => return refused("unknown"),
    };
    let touch = touch_holder(shared, session, Some(&resource))?;
    let Some(standing) = touch.standing.filter(|standing| standing.alive()) else {
        return refused("expired");
    };
    let reason = if fenced_on == timeline() { "held" } else { "refence" };
    let expires_at = wall_clock(standing.left());
    Ok(row::TableIterator::once((true, Some(clock::trust_ms(standing.left())), expires_at, Text::from(reason))))
}
