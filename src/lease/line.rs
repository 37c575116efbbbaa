//! The queue: who waits for a resource, first come, first served.
//!
//! A place is a row; its order is that of a sequence. The first place whose session is alive, not draining and not
//! ending is the **first in line**, and a free resource goes to nobody else. A barger that finds it free takes a place,
//! or is told `awaited`. Who hands over to the first in line, and when, is said in [`crate::lease::handover`].
//!
//! A place that an open transaction is giving up (its row is deleted, and the end of that transaction decides) is
//! passed over: a transaction that is left open keeps nothing from those behind. If it is rolled back the place is
//! where it was, and has lost no more than what was granted meanwhile; but a session that was granted past its own
//! place, and lets go, waits no more ([`leave_behind`]). A place that is locked is not passed over: it is being granted
//! to. Nor is that of a session that is being taken over, though nothing is granted to that: when the take-over is
//! committed it is the successor's, and until then nobody can tell whether it is.
//!
//! Places that are gone stay in the way while an old snapshot is open: [`crate::session::floor`] says how a line is
//! read without them.

mod places;

pub use places::{has_place, places, places_of};

use super::declaration::{self, Kind, Stands};
use super::row::{self, LeaseRow, Leases};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, enter, text_arg};
use crate::keys;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use crate::session::{self, floor, succession};
use crate::shmem::slots::SlotRef;
use fnv::FnvHashMap;
use pgrx::Uuid;
use pgrx::pg_sys::{ItemPointerData, TEXTOID, TIDARRAYOID, UUIDOID};
use pgrx::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CStr;

static ENTER: Statement = Statement::writes(include_str!("../../sql/query/queue/enter.sql"), &[TEXTOID, UUIDOID]);
static ENTER_FIRST: Statement =
    Statement::writes(include_str!("../../sql/query/queue/enter_first.sql"), &[TEXTOID, UUIDOID]);
static INHERIT: Statement =
    Statement::writes(include_str!("../../sql/query/queue/inherit.sql"), &[TIDARRAYOID, UUIDOID]);
static LEAVE: Statement = Statement::writes(include_str!("../../sql/query/queue/leave.sql"), &[TIDARRAYOID]);

const TABLE: &CStr = c"_waiters";
/// The columns of the table that say where, what is waited for, and who waits.
const PLACE: usize = 1;
const RESOURCE: usize = 2;
const SESSION: usize = 3;

/// The table of places.
pub fn table() -> Table {
    Table::open(TABLE, c"_waiters_pkey")
}

impl Call {
    /// The places of those who wait, by resource, whose table is opened once in a call.
    pub fn waiters(&self) -> &Table {
        self.tables.waiters.get_or_init(table)
    }
}

/// Who is first in line for a resource; or a session that is not to be granted to and whose place is a successor's, so
/// that nobody behind it is.
pub struct First {
    pub session: Uuid,
    /// All its places there, if the walk to the first of them has come by the end of the line.
    places: Option<Vec<ItemPointerData>>,
}

/// Who is first in line for some resources. By name: rows that are next to each other in an index are in the
/// processor's cache.
#[derive(Default)]
pub struct Line {
    pub first: BTreeMap<String, First>,
    /// What others wait for only in places that open transactions are giving up, and may have back.
    pub leaving: Vec<String>,
}

/// The first in line for each of the resources.
pub fn first_in_line(call: &Call, resources: Vec<&str>) -> Line {
    next_in_line(call, resources, &HashSet::new())
}

/// The same where some sessions are not to be granted to.
pub fn next_in_line(call: &Call, resources: Vec<&str>, but: &HashSet<Uuid>) -> Line {
    let table = call.waiters();
    // Mostly nobody waits, for the one or at all, which a look into the key tells for less than a scan costs.
    let all_or_one = if let [one] = *resources { Some(Key::Text(one)) } else { None };
    if !table.has_entry(all_or_one.as_slice()) {
        return Line::default();
    }
    let mut lines = Lines::of(call, Some(but));
    let first =
        resources.into_iter().filter_map(|resource| Some((resource.to_owned(), lines.first(resource)?))).collect();
    Line { first, leaving: lines.leaving }
}

/// The lines, as they are walked one after the other. Who may be granted to is asked once, of many resources and few
/// who wait for them: it is not to be kept for longer than that takes.
pub struct Lines<'a> {
    call: &'a Call,
    but: Option<&'a HashSet<Uuid>>,
    /// Whether nobody behind a place of a session is served: it may be granted to, or its successor may.
    has_turn: FnvHashMap<Uuid, bool>,
    /// As of [`Line`].
    pub leaving: Vec<String>,
}

impl Lines<'_> {
    /// `but`: sessions that are not to be granted to.
    pub fn of<'a>(call: &'a Call, but: Option<&'a HashSet<Uuid>>) -> Lines<'a> {
        Lines { call, but, has_turn: FnvHashMap::default(), leaving: Vec::new() }
    }

    pub fn first(&mut self, resource: &str) -> Option<First> {
        loop {
            let known = self.has_turn.len();
            let walked = self.walk(resource);
            // A walk shows places as they were when it began. One that it has passed over may be a successor's since
            // then, and no longer of the session that has been found to have no turn: it is shown so by another walk.
            if walked.passed_over && self.has_turn.len() > known {
                continue;
            }
            if walked.leaving && walked.first.is_none() {
                self.leaving.push(resource.to_owned());
            }
            return walked.first;
        }
    }

    fn walk(&mut self, resource: &str) -> Walked {
        let Lines { call, but, has_turn, .. } = self;
        let mut has_turn = |session: &Uuid| {
            let is_left_out = but.is_some_and(|but| but.contains(session));
            let lives = || session::row(*session).is_some_and(|row| call.is_eligible(&row));
            // In this order: a take-over that is rolled back meanwhile is seen open, or its session lives. So does one
            // that was left out for such an end, as its guard is let go of a little later.
            let look = || {
                // Mostly it just lives, and there is nothing to ask of a successor.
                !is_left_out && lives()
                    || succession::has_successor(call, *session)
                    || lives() && !(is_left_out && session::ending::is_ending(*session))
            };
            *has_turn.entry(*session).or_insert_with(look)
        };
        let (mut walked, mut beyond) = (Walked::default(), 0);
        let mut visit = |row: &Tuple| {
            let session = row.get::<Uuid>(SESSION)?;
            match &mut walked.first {
                None if !has_turn(&session) => walked.passed_over = true,
                None if row.is_being_deleted() => walked.leaving = true,
                None => walked.first = Some(First { session, places: Some(vec![row.tid()]) }),
                Some(first) => {
                    beyond += 1;
                    if beyond > limits::MAX_BEYOND {
                        first.places = None;
                    } else if session == first.session {
                        first.places.iter_mut().for_each(|places| places.push(row.tid()));
                    }
                }
            }
            (beyond > limits::MAX_BEYOND).then_some(())
        };
        if let Some(floor) = walk_line(call.waiters(), resource, None, &mut visit) {
            walk_line(call.waiters(), resource, Some(floor), &mut visit);
        }
        walked
    }
}

/// What a walk along a line has found.
#[derive(Default)]
struct Walked {
    first: Option<First>,
    /// Whether the place of a session that has no turn came before that.
    passed_over: bool,
    /// Whether a place came before that which an open transaction is giving up.
    leaving: bool,
}

/// Shows the places of a line, in order, until `visit` has an answer. Without a floor the line may prove to have one,
/// which the walk ends before.
fn walk_line(
    table: &Table,
    resource: &str,
    floor: Option<i64>,
    visit: &mut impl FnMut(&Tuple) -> Option<()>,
) -> Option<i64> {
    let (key, mut may_ask) = ([Key::Text(resource), Key::From(floor.unwrap_or(i64::MIN))], floor.is_none());
    let mut walk = table.walk_versions(Sight::Latest, &key);
    loop {
        match walk.step() {
            Stand::Row(_) => {
                if visit(&table.row()).is_some() {
                    return None;
                }
            }
            Stand::Stale => {
                let place = table.row().get::<i64>(PLACE).unwrap_or(i64::MIN);
                if may_ask && place >= 0 {
                    may_ask = false;
                    // By a table of its own, as this one is being walked.
                    let key = |from| vec![Key::Text(resource), Key::From(from)];
                    let floor = floor::raise(floor::lane(TABLE, resource), &self::table(), PLACE, key);
                    if floor > place {
                        return Some(floor);
                    }
                }
            }
            Stand::End => return None,
        }
    }
}

/// The places of the first in line, for each of the resources.
pub fn places_of_first(first: &BTreeMap<String, First>) -> HashMap<String, Vec<ItemPointerData>> {
    let (mut found, mut unknown) = (HashMap::new(), (Vec::new(), Vec::new()));
    for (resource, First { session, places }) in first {
        match places {
            Some(places) => drop(found.insert(resource.clone(), places.clone())),
            None => {
                unknown.0.push(resource.as_str());
                unknown.1.push(*session);
            }
        }
    }
    let looked_up = places(&unknown.0, &unknown.1);
    found.extend(looked_up.into_iter().map(|((resource, _), places)| (resource, places)));
    found
}

/// Takes away places that the caller has locked.
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

/// Whether somebody may be waiting: what has been given up is counted until it is cleaned away.
pub fn may_be_waited_for(call: &Call, resource: &str) -> bool {
    call.waiters().has_entry(&[Key::Text(resource)])
}

/// Gives a session a place that has none. False for a name that is just becoming a group, or is one.
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

/// The sessions that have a place for a resource; and whether anybody is in the middle of taking one or of giving it
/// up.
pub fn waiting(resource: &str) -> (Vec<Uuid>, bool) {
    let (mut sessions, mut in_flight) = (Vec::new(), false);
    table().scan(Sight::Dirty, &[Key::Text(resource)], |row, flight| {
        in_flight |= flight != Flight::None;
        sessions.extend(row.get::<Uuid>(SESSION));
        None::<()>
    });
    (sessions, in_flight)
}

/// Takes away the places of a session for what it lets go of, which would come back to it unasked: it was granted past
/// them, or has queued while a release was open that was rolled back. What another transaction has in hand stays: a
/// release waits for nobody's place.
pub fn leave_behind<'a>(call: &Call, session: Uuid, resources: impl Iterator<Item = &'a str>) {
    // Mostly it waits for nothing.
    if !places::may_wait(session) {
        return;
    }
    let resources: Vec<&str> = resources.collect();
    let (table, sessions) = (table(), vec![session; resources.len()]);
    let found = places(&resources, &sessions).into_values().flatten();
    let mut mine: Vec<_> = found.filter(|place| table.lock(*place, false) == Locked::Mine).collect();
    leave(call, &mut mine);
}

/// Gives up a session's places for a resource, waiting for whoever is just granting to it. Whether there were any.
pub fn cancel(call: &Call, resource: &str, at: SlotRef) -> bool {
    let (table, found) = (table(), places(&[resource], &[at.session()]));
    let mut mine: Vec<_> =
        found.into_values().flatten().filter(|place| table.lock(*place, true) == Locked::Mine).collect();
    leave(call, &mut mine);
    if !mine.is_empty() {
        call.seam().judge(resource);
        call.seam().revise(at);
    }
    !mine.is_empty()
}

/// Has the session's successor wait in its place, unless it has what is waited for. The resources for which that could
/// not be had: somebody is just granting there.
pub fn inherit(call: &Call, from: Uuid, to: Uuid) -> Vec<String> {
    let table = table();
    let (mine, others): (Vec<_>, Vec<_>) = places_of(&[from], limits::MAX_PLACES, 0)
        .into_iter()
        .partition(|(_, place)| table.lock(*place, false) == Locked::Mine);
    let served = |resource: &String| !row::of_session(resource, to).is_empty();
    let (spare, inherited): (Vec<_>, Vec<_>) = mine.into_iter().partition(|(resource, _)| served(resource));
    leave(call, &mut spare.iter().map(|(_, place)| *place).collect::<Vec<_>>());
    let mut moved: Vec<ItemPointerData> = inherited.iter().map(|(_, place)| *place).collect();
    if !moved.is_empty() {
        if table.is_plain() {
            for place in &moved {
                // Locked above.
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
        // At a time, for the worker that does this to judge them as well.
        call.seam().judge_at(&resource, clock::now());
    }
    others.into_iter().map(|(resource, _)| resource).collect()
}

/// Puts a session at the head of the queue, unless it is there.
pub fn take_first_place(call: &Call, resource: &str, session: Uuid) {
    if first_in_line(call, vec![resource]).first.get(resource).is_none_or(|first| first.session != session) {
        call.db().execute(&ENTER_FIRST, vec![Value::Text(resource), Value::Uuid(session)]);
        call.seam().judge(resource);
    }
}

/// Has the worker look at what sessions wait for: they may have been first in line.
pub fn note_places(call: &Call, sessions: &[Uuid]) {
    for (resource, _) in places_of(sessions, limits::MAX_PLACES, 0) {
        call.seam().judge(&resource);
    }
}

/// Takes away the places that living holders have in the queues of what they hold: one connection of a session may
/// queue while another is just granted the same, or has a release open that is rolled back. The rows of the leases are
/// locked, for else the holder could have released and queued anew since they were read.
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
    let shared = enter()?;
    spi::require_writes("lease_cancel()")?;
    let resource = text_arg("resource", resource)?;
    let call = Call::open(shared)?;
    let at = call.session(session.ok_or(Error::Null("session"))?)?;
    Ok(at.is_some_and(|at| cancel(&call, &resource, at)))
}
