//! Shared memory in SQL: the functions under the views, and the counters.
//!
//! A standby has the rows, but cannot know which sessions live. Its views show the rows, with the state `unknown`.

use crate::base::error::Result;
use crate::call::{enter, in_recovery};
use crate::pg::text::Text;
use crate::pg::{catalog, clock, row, transaction};
use crate::session::{self, Touch, wall_clock};
use crate::shmem::counters::{COUNTERS, RANGES, Ranges, SPANS};
use crate::shmem::databases::Database;
use crate::shmem::refusals::Refused;
use crate::shmem::shared;
use crate::shmem::word::State;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::sync::atomic::Ordering::Relaxed;

/// Returns whether a waiter may get a grant: it lives, and is not ending. Version 0.1.0 of the library asks this in
/// SQL, and goes on doing so until the server is restarted.
#[pg_extern(schema = "eskit_lease", strict)]
fn _eligible(session: Uuid, boot_id: i64, ttl_ms: i32) -> Result<bool> {
    Ok(session::standing(enter()?, catalog::home(), session, boot_id, ttl_ms).state == State::Alive)
}

row::composite! {
    /// What shared memory says of a session.
    Standing = "eskit_lease._session_standing" {
        state: Text,
        trust_ms: Option<i32>,
        expires_at: Option<TimestampWithTimeZone>,
        revision: Option<i64>,
        attached_pid: Option<i32>,
    }
}

#[pg_extern(schema = "eskit_lease", strict)]
fn _standing(session: Uuid, boot_id: i64, ttl_ms: i32) -> Result<Standing> {
    let (shared, home) = (shared()?, catalog::home());
    if in_recovery() {
        let state = Text::from("unknown");
        return Ok(Standing { state, trust_ms: None, expires_at: None, revision: None, attached_pid: None });
    }
    let standing = session::standing(shared, home, session, boot_id, ttl_ms);
    let left = standing.left();
    let at = shared.find(home, session);
    let pid = at.and_then(|at| shared.attached_pid(at));
    let (state, expires_at) = match standing.state {
        State::Alive => ("alive", wall_clock(left)),
        State::Frozen => ("closing", wall_clock(left)),
        _ => ("expired", None),
    };
    // A session without a slot has no revision yet.
    let revision = Some(standing.revision.cast_signed()).filter(|revision| *revision != 0);
    // This transaction's own grants are not yet vouched for, neither in the views nor in its answers.
    let touch = Touch::look(home, at, Some(standing));
    let trust_ms = Some(touch.trust_ms().unwrap_or(0));
    Ok(Standing { state: Text::from(state), trust_ms, expires_at, revision, attached_pid: pid })
}

/// Returns when a dead session's time ended.
#[pg_extern(schema = "eskit_lease", strict)]
fn _ended_at(session: Uuid, boot_id: i64, ttl_ms: i32) -> Result<Option<TimestampWithTimeZone>> {
    let shared = shared()?;
    if in_recovery() {
        return Ok(None);
    }
    let ended_at = session::ended_at(shared, catalog::home(), session, Some((boot_id, ttl_ms)));
    Ok(ended_at.and_then(|at| at.try_into().ok()))
}

/// Returns how long an owner has left to release a partition.
#[pg_extern(schema = "eskit_lease", strict)]
fn _revoke_in(revoke_at: i64, boot_id: i64, rebalance_timeout_ms: i32) -> Result<Option<Interval>> {
    let shared = shared()?;
    if in_recovery() {
        return Ok(None);
    }
    let at = shared.of_this_start(revoke_at, boot_id, rebalance_timeout_ms);
    Ok(Some(Interval::from_micros(i64::try_from(at.saturating_sub(clock::now())).unwrap_or(0))))
}

/// Returns the open or prepared transaction that a row's xmax belongs to. SQL cannot find it: a subtransaction that was
/// committed to its parent keeps no lock on its own id.
#[pg_extern(schema = "eskit_lease", strict)]
fn _open_transaction(xid: pg_sys::TransactionId) -> Option<pg_sys::TransactionId> {
    transaction::open_one(xid)
}

/// Returns, for each kind of span and each range, how many spans are in the range or in a shorter one.
fn spans(database: Option<&'static Database>) -> impl Iterator<Item = (Text, Option<i64>)> {
    SPANS.iter().enumerate().flat_map(move |(index, name)| {
        let counted = database.map_or(Ranges::default(), |database| database.counters.spans(index));
        let ends = RANGES.iter().map(u64::to_string).chain(["inf".to_owned()]);
        let row = move |(end, count): (String, u64)| (Text(format!("{name}_ms_le_{end}")), Some(count.cast_signed()));
        ends.zip(counted).map(row)
    })
}

#[pg_extern(schema = "eskit_lease")]
fn _refusals() -> Result<
    row::TableIterator<(
        name!(resource, Text),
        name!(consumer, Text),
        name!(reason, Text),
        name!(holder, Option<Text>),
        name!(refused_at, TimestampWithTimeZone),
    )>,
> {
    let (refusals, now, wall) = (shared()?.refusals(catalog::home()), clock::now(), clock::timestamp());
    let row = |refused: Refused<String>| {
        let at = wall - i64::try_from(now.saturating_sub(refused.at)).unwrap_or(0);
        let holder = Some(refused.holder).filter(|holder| !holder.is_empty()).map(Text);
        Some((Text(refused.resource), Text(refused.consumer), Text(refused.reason), holder, at.try_into().ok()?))
    };
    Ok(row::TableIterator::of(refusals.into_iter().filter_map(row).collect()))
}

#[pg_extern(schema = "eskit_lease")]
fn stats() -> Result<row::TableIterator<(name!(name, Text), name!(value, Option<i64>))>> {
    let shared = shared()?;
    let home = catalog::home();
    // Looking up the database takes no entry from a database in use.
    let database = shared.known_database(home.database);
    // PostgreSQL tells no process of the end of a prepared transaction.
    if !in_recovery() {
        shared.settle_prepared(transaction::outcome);
    }
    let count = |i| database.map_or(0, |database| database.counters.get(i)).cast_signed();
    let counted = |(i, name): (usize, &&'static str)| (Text::from(*name), Some(count(i)));
    let mut rows: Vec<(Text, Option<i64>)> = COUNTERS.iter().enumerate().map(counted).collect();
    let (mut here, mut taken, mut of_ended, mut dirty) = (0, 0, 0, 0);
    let now = clock::now();
    shared.each(now, |_, at, word| {
        let lives = matches!(word.state(), State::Alive | State::Frozen);
        here += i64::from(lives && at == home);
        taken += i64::from(!word.reclaimable(now));
        of_ended += i64::from(!lives && !word.reclaimable(now));
    });
    shared.each_dirty(|oid, _| dirty += i64::from(oid == home.database));
    let (databases_in_use, databases_taken) = shared.databases_in_use();
    let waiting = database.map_or(0, |database| database.waiting.calls());
    let unserved = database.map_or(0, Database::unserved_ms);
    let dirty_since = shared.dirty_since(home.database).map_or(now, |since| since.min(now));
    let confirmed = shared.confirmed().map(|start| i64::from(clock::trust_ms(clock::now().saturating_sub(start))));
    rows.extend(spans(database));
    rows.extend([
        (Text::from("sessions_alive"), Some(here)),
        (Text::from("slots_taken"), Some(taken)),
        (Text::from("slots_of_ended"), Some(of_ended)),
        (Text::from("resources_dirty"), Some(dirty)),
        (Text::from("oldest_dirty_ms"), Some(clock::trust_ms(now - dirty_since).into())),
        (Text::from("calls_waiting"), Some(i64::from(waiting))),
        (Text::from("confirmed_ms_ago"), confirmed),
        (Text::from("databases_in_use"), i64::try_from(databases_in_use).ok()),
        (Text::from("databases_taken"), i64::try_from(databases_taken).ok()),
        (Text::from("databases_unserved"), Some(shared.header.unserved.load(Relaxed).into())),
        (Text::from("since"), database.map(|database| database.since().cast_signed())),
        (Text::from("unserved_ms"), Some(i64::from(unserved))),
    ]);
    Ok(row::TableIterator::of(rows))
}
