//! session_wait and session_wait_many: heartbeats that take their time.
//!
//! A wait is a heartbeat. It ends after a third of the TTL at the latest, in time for the next heartbeat. If a call
//! comes more than a third of the TTL after the heartbeat before, it may have queued in a pooler behind the waits of
//! other sessions. So its wait is shortened by twice its lateness, down to none near half of the TTL.

use super::waiter_pass;
use crate::base::error::{Error, Result, log};
use crate::base::{interval, limits};
use crate::call::{Call, Given, enter};
use crate::lease::acquire::{self, SESSIONS_FULL};
use crate::lease::handover;
use crate::pg::lock;
use crate::pg::oids::Class;
use crate::pg::text::Text;
use crate::pg::{catalog, clock, random, row, transaction};
use crate::seam;
use crate::session::{Touch, UNCOMMITTED, death, touch, wall_clock};
use crate::shmem::Shared;
use crate::shmem::counters::Counter;
use crate::shmem::databases::Database;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::wait::pause;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use pgrx::{Uuid, name};

row::composite! {
    /// The state of a session, as its verbs answer it.
    SessionState = "eskit_lease.session_state" {
        alive: bool,
        trust_ms: Option<i32>,
        expires_at: Option<TimestampWithTimeZone>,
        revision: Option<i64>,
        reason: Text,
        retry_ms: Option<i32>,
    }
}

impl SessionState {
    /// Returns the answer of a verb. `sessions_full`, `uncommitted` and `unconfirmed` replace a reason that asks
    /// nothing of the client.
    pub fn of(touch: &Touch, reason: &str) -> SessionState {
        let living = touch.standing.filter(Standing::alive);
        let quiet = matches!(reason, "alive" | "timeout" | "heartbeat");
        let reason = match quiet {
            true if touch.without_slot() => SESSIONS_FULL,
            true if touch.uncommitted() || touch.overdue() => UNCOMMITTED,
            true if touch.unconfirmed() => "unconfirmed",
            _ => reason,
        };
        SessionState {
            alive: living.is_some(),
            trust_ms: touch.trust_ms(),
            expires_at: living.and_then(|standing| wall_clock(standing.left())),
            revision: living.map(|standing| standing.revision.cast_signed()),
            reason: Text::from(touch.refusal().unwrap_or(reason)),
            retry_ms: None,
        }
    }
}

/// Counts heartbeats that came about half of the TTL or more after the ones before: their clients are slow, or wait for
/// a connection.
pub fn count_late<'a>(shared: &Shared, database: &Database, touched: impl IntoIterator<Item = &'a Touch>) {
    let is_late = |touch: &&Touch| {
        let (Some(at), Some(standing)) = (touch.at, touch.standing) else { return false };
        standing.late > 0 && allowance(ttl(shared, at), standing.late) == 0
    };
    let late = touched.into_iter().filter(is_late).count() as u64;
    if late > 0 {
        database.add(Counter::HeartbeatsLate, late);
        tell(database);
    }
}

/// Logs, now and then, that sessions are late or wait in vain.
fn tell(database: &Database) {
    let [refused, late] = [Counter::WaitsRefused, Counter::HeartbeatsLate].map(|of| database.counters.get(of as usize));
    if database.waiting.must_tell(refused + late, clock::now()) {
        log(format!(
            "database \"{}\" has refused {refused} session_wait calls so far, and {late} heartbeats came late",
            catalog::database_name()
        ));
    }
}

fn ttl(shared: &Shared, at: SlotRef) -> u64 {
    u64::from(shared.ttl_ms(at)) * 1_000
}

/// Returns for how many microseconds a late call may wait: zero if only a moment would be left.
fn allowance(ttl: u64, late: u64) -> u64 {
    let third = ttl / 3;
    Some(third.saturating_sub(2 * late)).filter(|left| *left >= third / 10).unwrap_or(0)
}

/// A session, and what its client knows of it.
struct Waiter {
    touch: Touch,
    /// The session's TTL in microseconds.
    ttl: u64,
    revision: u64,
    /// Whether there is news beside a greater revision.
    news: bool,
}

impl Waiter {
    fn of(shared: &'static Shared, session: Uuid, revision: i64) -> Result<Waiter> {
        let mut touch = touch(shared, session)?;
        // Others do not see what this transaction has written until the wait is over, a place in line included.
        touch.pending = transaction::has_written();
        // Here, since not every call waits.
        if let Some(at) = touch.at.filter(|at| touch.alive() && shared.takes_news(*at))
            && let (Some(standing), Some(now)) = (&mut touch.standing, shared.look(at))
        {
            standing.revision = now.revision;
        }
        let ttl = touch.at.map_or(0, |at| ttl(shared, at));
        Ok(Waiter { touch, ttl, revision: revision.max(0).cast_unsigned(), news: false })
    }

    /// Returns the slot of a session that lives and has no news; its wait may go on.
    fn quiet(&self) -> Option<SlotRef> {
        self.touch.at.filter(|_| self.touch.alive() && !self.has_news())
    }

    fn has_news(&self) -> bool {
        self.news || self.touch.standing.is_some_and(|standing| standing.revision > self.revision)
    }

    fn answer(&self, otherwise: &Outcome) -> SessionState {
        match otherwise {
            _ if self.has_news() => SessionState::of(&self.touch, "changed"),
            Outcome::Reason(reason) => SessionState::of(&self.touch, reason),
            Outcome::Refused(retry_ms) => {
                SessionState { retry_ms: Some(*retry_ms), ..SessionState::of(&self.touch, "wait_limit") }
            }
        }
    }
}

/// How a wait ended, for a session without news of its own.
enum Outcome {
    Reason(&'static str),
    /// The call had no place, or came too late. It should come again after so many milliseconds.
    Refused(i32),
}

struct Wait {
    shared: &'static Shared,
    database: &'static Database,
    /// For how many microseconds the caller would wait.
    timeout: u64,
}

impl Wait {
    /// Waits for the first news of the sessions. Answers at once if there is some, or if one of them does not live.
    fn run(&self, waiters: &mut [Waiter]) -> Result<Outcome> {
        count_late(self.shared, self.database, waiters.iter().map(|waiter| &waiter.touch));
        let Some(quiet) = waiters.iter().map(Waiter::quiet).collect::<Option<Vec<_>>>() else {
            return Ok(Outcome::Reason("alive"));
        };
        let late = |waiter: &Waiter| waiter.touch.standing.map_or(0, |standing| standing.late);
        let shortest = waiters.iter().map(|waiter| waiter.ttl).min().unwrap_or(0);
        let allowed = waiters.iter().map(|waiter| allowance(waiter.ttl, late(waiter))).min().unwrap_or(0);
        let (helps, mut until, mut is_due) = (waiter_pass::is_able(), clock::now(), false);
        // A call that does not wait needs no place, and cannot come too late.
        if self.timeout > 0 {
            let place = (allowed > 0).then(|| self.shared.take_waiting_place(self.database, &quiet)).flatten();
            let Some(place) = place else { return Ok(self.refuse(shortest / 3)) };
            (until, is_due) = (clock::now() + self.timeout.min(allowed), allowed <= self.timeout);
            self.sleep(waiters, &quiet, until, helps)?;
            drop(place);
        }
        let mut helped = false;
        if waiters.iter().all(|waiter| waiter.quiet().is_some() && !waiter.touch.without_slot()) {
            helped = self.help(waiters, helps, until + shortest / limits::HELPS_FOR)?;
        }
        Ok(Outcome::Reason(if waiters.iter().any(|waiter| waiter.quiet().is_none()) {
            "alive"
        } else if helped || is_due {
            "heartbeat"
        } else {
            "timeout"
        }))
    }

    /// Refuses a wait. The call comes again in time for the next heartbeat, and for its own timeout.
    fn refuse(&self, third: u64) -> Outcome {
        self.database.add(Counter::WaitsRefused, 1);
        tell(self.database);
        let turn = self.database.waiting.turn_in(clock::now(), third.min(self.timeout.max(limits::FIRST_RETRY)));
        let jitter = random::below((turn / 4) as usize + 1) as u64;
        Outcome::Refused(i32::try_from((turn - jitter) / 1_000).unwrap_or(i32::MAX))
    }

    fn sleep(&self, waiters: &mut [Waiter], quiet: &[SlotRef], until: u64, helps: bool) -> Result<()> {
        let Wait { shared, database, .. } = *self;
        if let ([waiter], [at]) = (&mut *waiters, quiet) {
            if at.is_stand_in() {
                wait_for_slot(shared, at.session(), until, &mut waiter.touch)?;
                waiter.news = waiter.touch.alive() && !waiter.touch.without_slot();
            } else {
                waiter.touch.stands(shared.wait_for_revision(database, *at, waiter.revision, until, helps));
            }
            return Ok(());
        }
        // A session without a slot has no revision. No heartbeat moves its deadline, which is known from the first
        // look.
        let with_slot = |at: &SlotRef| !at.is_stand_in();
        let waited = quiet.iter().copied().zip(waiters.iter().map(|waiter| waiter.revision));
        let waited: Vec<_> = waited.filter(|(at, _)| with_slot(at)).collect();
        shared.wait_for_any(database, &waited, until, helps);
        for (waiter, at) in waiters.iter_mut().zip(quiet).filter(|(_, at)| with_slot(at)) {
            waiter.touch.stands(shared.look(*at));
        }
        Ok(())
    }

    /// Does what the worker would do for the sessions. Returns whether this call did a run for the whole database. All
    /// sessions may be in line for many resources, and none of them gets a heartbeat meanwhile. So the call stops at
    /// `stop`. It begins with another session each time.
    fn help(&self, waiters: &mut [Waiter], helps: bool, stop: u64) -> Result<bool> {
        // A wait is a heartbeat. It must not fail because an administrator has a table locked.
        let can_judge = || acquire::can_look() && acquire::can_take() && death::can_record();
        if transaction::is_read_only() || !can_judge() {
            return Ok(false);
        }
        let call = Call::open(self.shared)?;
        let helped = helps && waiter_pass::pass_if_asked(&call)?;
        let first = random::below(waiters.len());
        waiters.rotate_left(first);
        for (number, waiter) in waiters.iter_mut().enumerate() {
            if number > 0 && clock::now() >= stop {
                break;
            }
            if let Some(at) = waiter.touch.at {
                handover::judge_places(&call, at);
                // The client finds the grants once this call has committed.
                waiter.news = helped && seam::revises(at);
            }
        }
        waiters.rotate_right(first);
        Ok(helped)
    }
}

/// Waits until a session without a slot gets one or ends, or until `until`. Such a session has no revision.
fn wait_for_slot(shared: &'static Shared, session: Uuid, until: u64, now: &mut Touch) -> Result<()> {
    while now.without_slot() {
        let left = until.saturating_sub(clock::now());
        if left == 0 {
            break;
        }
        pause(left);
        *now = Touch { came: now.came, ..touch(shared, session)? };
    }
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn session_wait(
    session: Option<Uuid>,
    revision: Option<i64>,
    timeout: default!(Option<Interval>, "NULL"),
) -> Result<SessionState> {
    let shared = enter()?;
    let (session, revision) = (session.given("session")?, revision.given("revision")?);
    let timeout = u64::from(interval::wait_ms(timeout)?) * 1_000;
    let mut waiters = [Waiter::of(shared, session, revision)?];
    let wait = Wait { shared, database: shared.database(waiters[0].touch.home)?, timeout };
    let outcome = wait.run(&mut waiters)?;
    Ok(waiters[0].answer(&outcome))
}

#[pg_extern(schema = "eskit_lease")]
fn session_wait_many(
    sessions: Option<Vec<Option<Uuid>>>,
    revisions: Option<Vec<Option<i64>>>,
    timeout: default!(Option<Interval>, "NULL"),
) -> Result<
    row::TableIterator<(
        name!(session, Uuid),
        name!(alive, bool),
        name!(trust_ms, Option<i32>),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(revision, Option<i64>),
        name!(reason, Text),
        name!(retry_ms, Option<i32>),
    )>,
> {
    let shared = enter()?;
    let (sessions, revisions) = (sessions.given("sessions")?, revisions.given("revisions")?);
    let timeout = u64::from(interval::wait_ms(timeout)?) * 1_000;
    if sessions.len() != revisions.len() {
        return Err(Error::Revisions { sessions: sessions.len(), revisions: revisions.len() }.into());
    }
    if !(1..=limits::MAX_WAITED).contains(&sessions.len()) {
        let (given, max) = (sessions.len() as i64, limits::MAX_WAITED as i64);
        return Err(Error::Number { what: "sessions", given, min: 1, max }.into());
    }
    let one = |(session, revision): (Option<Uuid>, Option<i64>)| {
        let session = session.given("session")?;
        Ok((session, Waiter::of(shared, session, revision.given("revision")?)?))
    };
    let (sessions, mut waiters): (Vec<Uuid>, Vec<Waiter>) =
        sessions.into_iter().zip(revisions).map(one).collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let wait = Wait { shared, database: shared.database(catalog::home())?, timeout };
    let outcome = wait.run(&mut waiters)?;
    let row = |(session, waiter): (Uuid, Waiter)| {
        let SessionState { alive, trust_ms, expires_at, revision, reason, retry_ms } = waiter.answer(&outcome);
        (session, alive, trust_ms, expires_at, revision, reason, retry_ms)
    };
    Ok(row::TableIterator::of(sessions.into_iter().zip(waiters).map(row).collect()))
}

/// Lets the session be woken by news of a table (see [`crate::shmem::news`]); NULL ends that. A heartbeat.
#[pg_extern(schema = "eskit_lease")]
fn session_watch(session: Option<Uuid>, outbox: Option<Class>) -> Result<SessionState> {
    let shared = enter()?;
    let session = session.given("session")?;
    let outbox = outbox.map(|Class(table)| table);
    if let Some(outbox) = outbox {
        lock::require_readable(outbox)?;
    }
    let touch = touch(shared, session)?;
    let database = shared.database(touch.home)?;
    count_late(shared, database, [&touch]);
    if let Some(at) = touch.at.filter(|_| touch.alive()) {
        shared.watch_table(database, at, outbox.map_or(0, |table| table.to_u32()));
    }
    Ok(SessionState::of(&touch, "alive"))
}

#[cfg(test)]
mod tests {
    use super::allowance;

    #[test]
    fn the_later_a_heartbeat_the_shorter_its_wait() {
        const TTL: u64 = 9_000;
        let waits = [0, 500, 1_000, 1_300, 1_400, 1_500, 9_000].map(|late| allowance(TTL, late));
        assert_eq!(waits, [3_000, 2_000, 1_000, 400, 0, 0, 0]);
    }
}
