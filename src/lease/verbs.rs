//! The SQL functions of leases. [`crate::lease::acquire`] says which session gets a lease.

use super::acquire::{acquire, acquire_one};
use super::answer::{Answer, LeaseAnswer};
use super::fate::{Fate, Loss, fate};
use super::{refence, refused};
use crate::base::error::Result;
use crate::call::{Call, Given, enter, names_arg, text_arg};
use crate::pg::text::{Text, TextArray};
use crate::pg::{catalog, row};
use crate::session::{holders, touch, touch_holder, wall_clock};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use pgrx::{Uuid, name};

row::composite! {
    /// The answer of lease_renew in SQL: whether a lease is still held.
    LeaseState = "eskit_lease.lease_state" {
        held: bool,
        trust_ms: Option<i32>,
        expires_at: Option<TimestampWithTimeZone>,
        reason: Text,
    } added {
        holder: Option<Text>,
    }
}

impl LeaseState {
    fn lost(loss: &Loss) -> LeaseState {
        let former = || Text(loss.former_reason());
        let reason = if catalog::has_objects_of_today() { Text::from(loss.reason()) } else { former() };
        LeaseState { held: false, trust_ms: None, expires_at: None, reason, holder: loss.holder().map(Text::from) }
    }
}

#[pg_extern(schema = "eskit_lease")]
fn lease_acquire(
    resource: Option<Text>,
    session: Option<Uuid>,
    queue: default!(Option<bool>, "false"),
) -> Result<LeaseAnswer> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let queue = queue.given("queue")?;
    let session = session.given("session")?;
    let touch = touch(shared, session)?;
    let answer = match touch.acquirer() {
        Ok(me) => acquire_one(&Call::open(shared)?, me, resource, queue)?,
        Err(refusal) => {
            let answer = Answer::refused(refusal);
            refused::note(shared, touch.home, session, &[resource], std::slice::from_ref(&answer));
            answer
        }
    };
    Ok(LeaseAnswer { revision: touch.revision(), ..LeaseAnswer::new(answer, touch.trust_ms()) })
}

#[pg_extern(schema = "eskit_lease")]
fn lease_acquire_many(
    resources: Option<TextArray>,
    session: Option<Uuid>,
) -> Result<
    row::TableIterator<(
        name!(resource, Text),
        name!(granted, bool),
        name!(fence, Option<i64>),
        name!(slot, Option<i32>),
        name!(holder, Option<Text>),
        name!(trust_ms, Option<i32>),
        name!(reason, Text),
    )>,
> {
    let shared = enter()?;
    let names = names_arg(resources)?;
    let session = session.given("session")?;
    let touch = touch(shared, session)?;
    let answers = match touch.acquirer() {
        Ok(me) => acquire(&Call::open(shared)?, me, &names, false)?,
        Err(refusal) => {
            let answers = vec![Answer::refused(refusal); names.len()];
            refused::note(shared, touch.home, session, &names, &answers);
            answers
        }
    };
    let trust_ms = touch.trust_ms();
    let row = |(name, answer)| {
        let LeaseAnswer { granted, fence, slot, holder, trust_ms, reason, .. } = LeaseAnswer::new(answer, trust_ms);
        (Text(name), granted, fence, slot, holder, trust_ms, reason)
    };
    Ok(row::TableIterator::of(names.into_iter().zip(answers).map(row).collect()))
}

#[pg_extern(schema = "eskit_lease")]
fn lease_renew(resource: Option<Text>, fence: Option<i64>) -> Result<LeaseState> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.given("fence")?;
    let call = Call::open(shared)?;
    let (session, row) = match fate(&call, &resource, None, fence) {
        Fate::Current { session, row } => (session, row),
        Fate::Lost(loss) => return Ok(LeaseState::lost(&loss)),
    };
    let touch = touch_holder(shared, session, Some(&resource))?;
    let Some(standing) = touch.standing.filter(|standing| standing.alive()) else {
        return Ok(LeaseState::lost(&Loss::Expired));
    };
    let reason = match (refence::is_current(&call, &row), touch.unconfirmed()) {
        (false, _) => "refence",
        (true, true) => "unconfirmed",
        (true, false) => "held",
    };
    Ok(LeaseState {
        held: true,
        trust_ms: touch.trust_ms(),
        expires_at: wall_clock(standing.left()),
        reason: Text::from(reason),
        holder: holders::name(session).map(Text),
    })
}
