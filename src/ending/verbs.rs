//! The SQL functions of sessions.

use super::close;
use super::retention::{self, Progress};
use super::sweep::{self, waited::Looked};
use super::takeover::take_over;
use super::waits::{self, SessionState};
use crate::base::error::{Error, Result};
use crate::base::interval;
use crate::call::{Call, Given, enter, enter_writing, text_arg};
use crate::lease::line;
use crate::pg::guard::Mode;
use crate::pg::text::Text;
use crate::pg::{catalog, clock, row};
use crate::session::{New, Touch, drain, lock_row, open, touch, wall_clock};
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use crate::{group, item};
use pgrx::Uuid;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;

row::composite! {
    /// The answer of session_open.
    OpenedSession = "eskit_lease.opened_session" {
        session: Uuid,
        trust_ms: i32,
        expires_at: Option<TimestampWithTimeZone>,
        revision: i64,
    }
}

row::composite! {
    /// The answer of session_sweep.
    Swept = "eskit_lease.sweep_result" {
        ended: i32,
        handed_over: i32,
        more: bool,
    }
}

#[pg_extern(schema = "eskit_lease")]
fn session_open(
    consumer: Option<Text>,
    ttl: default!(Option<Interval>, "NULL"),
    attach: default!(Option<bool>, "false"),
    attach_grace: default!(Option<Interval>, "'0'"),
    takeover: default!(Option<bool>, "false"),
) -> Result<OpenedSession> {
    let shared = enter_writing("session_open()")?;
    let consumer = text_arg("consumer", consumer)?;
    let ttl_ms = interval::ttl_ms(ttl)?;
    let attach = attach.given("attach")?;
    let grace_ms = interval::grace_ms("attach_grace", attach_grace.given("attach_grace")?)?;
    let takeover = takeover.given("takeover")?;
    if grace_ms > 0 && !attach {
        return Err(Error::NotAttached.into());
    }
    let call = Call::open(shared)?;
    let at = open(&call, New { attached: attach, ..New::of(&call, &consumer, ttl_ms) })?;
    if attach {
        shared.attach(at, u64::from(grace_ms.cast_unsigned()) * 1_000);
    }
    if takeover {
        take_over(&call, at, &consumer)?;
    }
    let standing = shared.look(at).ok_or(Error::SessionsFull)?;
    let touch = Touch::look(call.home, Some(at), Some(standing));
    Ok(OpenedSession {
        session: at.session(),
        trust_ms: touch.trust_ms().unwrap_or(0),
        expires_at: wall_clock(standing.left()),
        revision: standing.revision.cast_signed(),
    })
}

#[pg_extern(schema = "eskit_lease")]
fn session_heartbeat(session: Option<Uuid>) -> Result<SessionState> {
    let shared = enter()?;
    let touch = touch(shared, session.given("session")?)?;
    let counter = if touch.alive() { Counter::Heartbeats } else { Counter::HeartbeatsRefused };
    let database = shared.database(touch.home)?;
    database.add(counter, 1);
    waits::count_late(shared, database, [&touch]);
    Ok(SessionState::of(&touch, "alive"))
}

#[pg_extern(schema = "eskit_lease")]
fn session_drain(session: Option<Uuid>) -> Result<bool> {
    let shared = enter_writing("session_drain()")?;
    let session = session.given("session")?;
    let touch = touch(shared, session)?;
    let Some(at) = touch.at.filter(|_| touch.alive()) else { return Ok(false) };
    let call = Call::open(shared)?;
    let locked = lock_row(session).is_some();
    if locked {
        drain(&call, session);
        // Another connection may have called this: the session must hear that it has to release its partitions.
        call.seam().revise(at);
        // Resources for which the session was first in line go to the next waiter.
        line::note_places(&call, &[session]);
        group::note_groups(&call, &[session]);
    }
    Ok(locked)
}

#[pg_extern(schema = "eskit_lease")]
fn session_detach(session: Option<Uuid>) -> Result<bool> {
    let shared = enter()?;
    let touch = touch(shared, session.given("session")?)?;
    Ok(touch.alive() && touch.at.is_some_and(|at| shared.detach(at)))
}

#[pg_extern(schema = "eskit_lease")]
fn session_close(session: Option<Uuid>) -> Result<bool> {
    let shared = enter_writing("session_close()")?;
    let session = session.given("session")?;
    let call = Call::open(shared)?;
    let alive = |at: &SlotRef| shared.look(*at).is_some_and(|standing| standing.alive());
    // A private session may also be closed; that gives back its one lease.
    let Some(at) = call.holder(session, None)?.filter(alive) else {
        return Ok(false);
    };
    // Waits for this session's own fenced transactions: a close after the work means that the work is done.
    call.fencer(at).lock(Mode::Exclusive);
    if !alive(&at) || lock_row(session).is_none() {
        return Ok(false);
    }
    close::end(&call, at)?;
    call.seam().count(Counter::SessionsClosed, 1);
    Ok(true)
}

#[pg_extern(schema = "eskit_lease")]
fn session_sweep(max_leases: default!(Option<i32>, "1000")) -> Result<Swept> {
    let shared = enter_writing("session_sweep()")?;
    let max_leases = max_leases.given("max_leases")?;
    let most = usize::try_from(max_leases).ok().filter(|most| (1..=100_000).contains(most)).ok_or(Error::Argument {
        argument: "max_leases",
        given: max_leases.into(),
        min: 1,
        max: 100_000,
    })?;
    // As the worker does, this locks the extension. Otherwise the sweep could take sessions of an extension that is
    // created meanwhile for those of a dropped one.
    if !catalog::lock_extension_soon() {
        // Another transaction drops the extension, or is about to.
        return Ok(Swept { ended: 0, handed_over: 0, more: true });
    }
    let call = Call::open(shared)?;
    item::expect_copies(&call);
    let mut pass = sweep::pass(&call, most, true, &mut Looked::default())?;
    let now = clock::now();
    pass.more |= retention::is_time(call.database, now, pass.looked_through)
        && retention::retire(&call, now, most, pass.looked_through, &mut Progress::from_the_oldest());
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let more = pass.more || pass.blocked;
    Ok(Swept { ended: count(pass.ended), handed_over: count(pass.handed_over), more })
}
