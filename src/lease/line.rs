//! The line: the sessions that wait for a resource, first come, first served.
//!
//! A place is a row; a sequence orders the places. The **first in line** is the first place whose session lives, does
//! not drain and does not end. A free resource goes to no other session, except an heir or a successor by grace.
//! Another session that finds the resource free is told `awaited`, or takes a place if it asked to wait.
//! [`crate::lease::handover`] says how and when the first in line is served.
//!
//! A walk passes over a place whose row an open transaction has deleted, so a transaction that is left open does not
//! hold up the sessions behind. If that transaction rolls back, the place is where it was, and its session has missed
//! only what was granted meanwhile. If the session itself was granted the resource while its place was passed over, it
//! loses the place when it releases the resource ([`leave_behind`]). If the session asks to wait meanwhile, it gets a
//! new place at the end of the line: it then waits however that transaction ends. After a rollback it has both places,
//! and a grant takes both away.
//!
//! A walk stops at a place that another transaction has locked, usually to grant the resource to its session. It also
//! stops at the place of a session that is being taken over, although that session is granted nothing. When the
//! take-over commits, the place is the successor's.
//!
//! A session that has a permit of a semaphore has no turn in its line (see [`crate::lease::seat`]). It may still have a
//! place there: another connection of the session may have taken one while the transaction that acquired or released
//! the permit was open, or a take-over has left it one. That place counts again once the permit is gone.
//!
//! Rows of former places stay in the index while an old snapshot is open. [`crate::session::floor`] says how a line is
//! read without them.

mod places;
mod walk;

pub use places::{TABLE, has_place, may_wait, places, places_of, stays_in_line, table};
pub use walk::{First, Lines, first_in_line, next_in_line, places_of_first};

use super::declaration::{self, Kind, Stands};
use super::row::{self, LeaseRow, Leases};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::keys;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight};
use crate::pg::text::Text;
use crate::session::succession;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::pg_sys::{ItemPointerData, TEXTOID, TIDARRAYOID, UUIDOID};
use pgrx::prelude::*;
use places::SESSION;

static ENTER: Statement = Statement::writes(include_str!("../../sql/query/queue/enter.sql"), &[TEXTOID, UUIDOID]);
static ENTER_FIRST: Statement =
    Statement::writes(include_str!("../../sql/query/queue/enter_first.sql"), &[TEXTOID, UUIDOID]);
static INHERIT: Statement =
    Statement::writes(include_str!("../../sql/query/queue/inherit.sql"), &[TIDARRAYOID, UUIDOID]);
static LEAVE: Statement = Statement::writes(include_str!("../../sql/query/queue/leave.sql"), &[TIDARRAYOID]);

/// Deletes places that the caller has locked.
pub fn leave(call: &Call, places: &mut [ItemPointerData]) {
    if places.is_empty() {
        return;
    }
    let table = call.waiters();
    if !table.is_plain() {
        call.db().execute(&LEAVE, vec![Value::Tids(places)]);
        return;
    }
    for place in places {
        table.try_delete_at(*place);
    }
    spi::durably();
}

/// Returns whether the line of a resource may have a place. A former place counts until its index entry is removed.
pub fn may_be_waited_for(call: &Call, resource: &str) -> bool {
    call.waiters().has_entry(&[Key::Text(resource)])
}

/// Gives a place to a session that has none, or may lose the one that it has. Returns false for a group, or for a name
/// that is being declared as one.
pub fn take_place(call: &Call, resource: &str, session: Uuid) -> Result<bool> {
    if places::is_full(session) {
        return Err(Error::PlacesFull.into());
    }
    let stripe = Guard::Stripe(keys::stripe(resource, 0));
    stripe.lock(Mode::Exclusive);
    let kind = match declaration::stands(resource) {
        Stands::Absent => None,
        Stands::InFlight(kind) => Some(kind),
        Stands::Declared(declaration) => Some(declaration.kind),
    };
    if kind != Some(Kind::Group) {
        call.db().execute(&ENTER, vec![Value::Text(resource), Value::Uuid(session)]);
    }
    stripe.unlock(Mode::Exclusive);
    Ok(kind != Some(Kind::Group))
}

/// Returns the sessions that have a place for a resource, and whether another transaction is making, changing or
/// deleting one.
pub fn waiting(resource: &str) -> (Vec<Uuid>, bool) {
    let (mut sessions, mut in_flight) = (Vec::new(), false);
    table().scan(Sight::Dirty, &[Key::Text(resource)], |row, flight| {
        in_flight |= flight != Flight::None;
        sessions.push(row.required(SESSION));
        None::<()>
    });
    (sessions, in_flight)
}

/// Deletes a session's places for resources that it releases, since they would bring the resources back unasked. A
/// session has such a place if it was granted the resource while the place was passed over. It also has one if it took
/// the place during its own release, and that release was rolled back. Skips a place that another transaction has
/// locked: a release waits for no place.
pub fn leave_behind<'a>(call: &Call, session: Uuid, resources: impl Iterator<Item = &'a str>) {
    let mut waiting = left_by(call, session);
    waiting.extend(Some(session).filter(|session| may_wait(*session)));
    // Usually the session waits for nothing.
    if waiting.is_empty() {
        return;
    }
    let (table, resources) = (table(), resources.collect::<Vec<_>>());
    let found = waiting.into_iter().flat_map(|session| places(&resources, &vec![session; resources.len()]));
    let mut mine: Vec<_> =
        found.flat_map(|(_, places)| places).filter(|place| table.lock(*place, false) == Locked::Mine).collect();
    leave(call, &mut mine);
}

/// Gives up a session's places for a resource. Waits for a transaction that has locked one of these places, but not for
/// a place that a take-over left. Returns whether the session had a place.
pub fn cancel(call: &Call, resource: &str, at: SlotRef) -> bool {
    let table = table();
    let locked = |session: Uuid, waits: bool| -> Vec<ItemPointerData> {
        let found = places(&[resource], &[session]).into_values().flatten();
        found.filter(|place| table.lock(*place, waits) == Locked::Mine).collect()
    };
    let mut mine: Vec<_> = left_by(call, at.session()).into_iter().flat_map(|left| locked(left, false)).collect();
    // The session's own places come last: meanwhile the sweep may move a predecessor's place to the session.
    mine.extend(locked(at.session(), true));
    leave(call, &mut mine);
    if !mine.is_empty() {
        call.seam().judge(resource);
        call.seam().revise(at);
    }
    !mine.is_empty()
}

/// Moves a session's places to its successor; deletes those for resources that the successor holds. Returns the
/// resources whose places another transaction has locked or changed.
pub fn inherit(call: &Call, from: Uuid, to: Uuid) -> Vec<String> {
    pass_on(call, places_of(&[from], limits::MAX_PLACES, 0), to)
}

fn pass_on(call: &Call, places: Vec<(String, ItemPointerData)>, to: Uuid) -> Vec<String> {
    let table = table();
    let (mine, others): (Vec<_>, Vec<_>) =
        places.into_iter().partition(|(_, place)| table.lock(*place, false) == Locked::Mine);
    let served = |resource: &String| !row::of_session(resource, to).is_empty();
    let (spare, inherited): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(resource, _)| served(resource));
    leave(call, &mut spare.iter().map(|(_, place)| *place).collect::<Vec<_>>());
    let mut moved: Vec<ItemPointerData> = inherited.iter().map(|(_, place)| *place).collect();
    if !moved.is_empty() {
        if table.is_plain() {
            for place in &moved {
                // The place was locked above; this positions the table at it.
                if table.lock(*place, false) == Locked::Mine {
                    table.update(&[(SESSION as i32, Value::Uuid(to).datum())]);
                }
            }
            spi::durably();
        } else {
            call.db().execute(&INHERIT, vec![Value::Tids(&mut moved), Value::Uuid(to)]);
        }
    }
    for (resource, _) in spare.into_iter().chain(inherited) {
        // With a time, the worker judges these resources even if it runs this itself.
        call.seam().judge_at(&resource, clock::now());
    }
    others.into_iter().map(|(resource, _)| resource).collect()
}

/// Returns the dead predecessors of a session that may still have places: a take-over leaves behind a place that
/// another transaction has locked or changed. Such a place counts as the session's, and the sweep moves it later. A
/// call of the session touches only the places for the resources that it names. The call's transaction may stay open,
/// and its locks are in the way of other waiters and of the sweep.
pub fn left_by(call: &Call, session: Uuid) -> Vec<Uuid> {
    // Usually no session has been taken over.
    if !succession::table().has_entry(&[]) {
        return Vec::new();
    }
    let is_left = |from: &Uuid| places::may_wait(*from) && succession::heir(call, *from) == Some(session);
    succession::former(session).into_iter().filter(is_left).collect()
}

/// Returns whether a session has a place for a resource, or a take-over has left one behind for it.
pub fn waits(call: &Call, resource: &str, session: Uuid) -> bool {
    has_place(resource, session) || left_by(call, session).into_iter().any(|left| has_place(resource, left))
}

/// Moves to a session the places that a take-over left behind in the line of a resource.
pub fn inherit_left(call: &Call, resource: &str, session: Uuid) {
    let left = left_by(call, session);
    let found = places(&vec![resource; left.len()], &left).into_values().flatten();
    pass_on(call, found.map(|place| (resource.to_owned(), place)).collect(), session);
}

/// Puts a session at the head of the line, unless it is first already.
pub fn take_first_place(call: &Call, resource: &str, session: Uuid) {
    if first_in_line(call, vec![resource]).first.get(resource).is_none_or(|first| first.session != session) {
        call.db().execute(&ENTER_FIRST, vec![Value::Text(resource), Value::Uuid(session)]);
        call.seam().judge(resource);
    }
}

/// Asks the worker to judge the resources that sessions wait for: one of the sessions may have been first in line.
pub fn note_places(call: &Call, sessions: &[Uuid]) {
    for (resource, _) in places_of(sessions, limits::MAX_PLACES, 0) {
        call.seam().judge(&resource);
    }
}

/// Deletes the places that holders have in the lines of what they hold. Such a place arises when one connection of a
/// session queues while another one is granted the resource, or rolls back a release of it. Locks the rows of the
/// leases first. Otherwise the holder could have released and queued again since the rows were read.
pub fn leave_own(call: &Call, held: Vec<(String, LeaseRow)>) {
    let pairs = held.iter().filter_map(|(resource, row)| Some((resource.as_str(), row.session?)));
    let (resources, sessions): (Vec<&str>, Vec<Uuid>) = pairs.unzip();
    if resources.is_empty() {
        return;
    }
    let mut own = places(&resources, &sessions);
    let (leases, table) = (Leases::open(), table());
    let mut stale = Vec::new();
    for (resource, row) in held {
        let tids = row.session.and_then(|session| own.remove(&(resource, session))).unwrap_or_default();
        if !tids.is_empty() && leases.lock(row.tid, false) == Locked::Mine {
            stale.extend(tids.into_iter().filter(|place| table.lock(*place, false) == Locked::Mine));
        }
    }
    leave(call, &mut stale);
}

#[pg_extern(schema = "eskit_lease")]
fn lease_cancel(resource: Option<Text>, session: Option<Uuid>) -> Result<bool> {
    let shared = enter_writing("lease_cancel()")?;
    let resource = text_arg("resource", resource)?;
    let call = Call::open(shared)?;
    let at = call.session(session.given("session")?)?;
    Ok(at.is_some_and(|at| cancel(&call, &resource, at)))
}
