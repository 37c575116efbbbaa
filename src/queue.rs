//! The queue: who waits for a resource, first come, first served.
//!
//! A place is a row; its order is that of a sequence. The first place whose session is alive, not draining and not ending is the
//! **first in line**, and a free resource goes to nobody else. A barger that finds it free takes a place, or is told `awaited`.
//!
//! [`hand_over`] gives resources that are free, or whose holder is dead, or is letting go in this very transaction, to the first in
//! line. It runs in the transaction of the holder's release or close, in the worker, and (through [`judge_places`]) at the end of a
//! waiter's own session_wait. A waiter that is just ending is skipped; what is in somebody else's hands is left, and reported as
//! busy, for the worker to try again.

use crate::call::{Call, enter, text_arg};
use crate::claim::{LeaseRow, Leases, Probe};
use crate::error::{Error, Result};
use crate::grant::{self, Candidate};
use crate::guard::{Guard, Mode};
use crate::liveness::databases::Counter;
use crate::liveness::slots::{SlotRef, Standing};
use crate::liveness::word::State;
use crate::session::{self, SessionRow};
use crate::spi::{self, Db, Statement, Value};
use crate::table::{Key, Locked, Sight, Table};
use crate::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::{INT8OID, ItemPointerData, Oid, TEXTARRAYOID, TEXTOID, UUIDARRAYOID, UUIDOID};
use pgrx::prelude::*;
use std::collections::{HashMap, HashSet};

const TIDARRAYOID: Oid = Oid::from_u32(1010);

static FIRST: Statement = Statement::reads(include_str!("../sql/query/queue/first.sql"), &[TEXTARRAYOID, UUIDARRAYOID]);
static PLACES: Statement =
    Statement::reads(include_str!("../sql/query/queue/places.sql"), &[TEXTARRAYOID, UUIDARRAYOID]);
static PLACES_OF: Statement =
    Statement::reads(include_str!("../sql/query/queue/places_of.sql"), &[UUIDARRAYOID, INT8OID, INT8OID]);
static FULL: Statement = Statement::reads(include_str!("../sql/query/queue/full.sql"), &[UUIDOID, INT8OID]);
static ENTER: Statement = Statement::writes(include_str!("../sql/query/queue/enter.sql"), &[TEXTOID, UUIDOID]);
static LEAVE: Statement = Statement::writes(include_str!("../sql/query/queue/leave.sql"), &[TIDARRAYOID]);

/// Resources that one session may wait for.
pub const MAX_PLACES: usize = 10_000;

/// The table of places.
pub fn table() -> Table {
    Table::open(c"_waiters", c"_waiters_pkey")
}

/// The first in line for each of the resources, with some sessions left out.
pub fn first_in_line(call: &Call, mut resources: Vec<&str>, without: &[Uuid]) -> HashMap<String, Uuid> {
    // Mostly nobody waits, here or at all, which a look into the key tells for less than a statement costs.
    let table = table();
    if resources.len() > 1 && table.scan(Sight::Latest, &[], |_, _| Some(())).is_none() {
        return HashMap::new();
    }
    resources.retain(|resource| table.scan(Sight::Latest, &[Key::Text(resource)], |_, _| Some(())).is_some());
    if resources.is_empty() {
        return HashMap::new();
    }
    call.db()
        .run(&FIRST, vec![Value::Texts(resources), Value::Uuids(without)], |row| (row.text(1), row.uuid(2)))
        .into_iter()
        .collect()
}

type Places = HashMap<(String, Uuid), Vec<ItemPointerData>>;

/// The places of sessions in the queues of resources, pair by pair.
pub fn places(db: &Db, resources: Vec<&str>, sessions: &[Uuid]) -> Places {
    let mut places = Places::new();
    let values = vec![Value::Texts(resources), Value::Uuids(sessions)];
    for (resource, session, tid) in db.run(&PLACES, values, |row| (row.text(1), row.uuid(2), row.tid(3))) {
        places.entry((resource, session)).or_default().push(tid);
    }
    places
}

/// Up to `most` places of sessions, after the first `skip`, with their resources.
pub fn places_of(db: &Db, sessions: &[Uuid], most: usize, skip: usize) -> Vec<(String, ItemPointerData)> {
    let values = vec![Value::Uuids(sessions), Value::Long(most as i64), Value::Long(skip as i64)];
    db.run(&PLACES_OF, values, |row| (row.text(1), row.tid(2)))
}

/// Takes away places that the caller has locked.
pub fn leave(db: &Db, places: &mut [ItemPointerData]) {
    if !places.is_empty() {
        db.execute(&LEAVE, vec![Value::Tids(places)]);
    }
}

/// Queues a session, which then has a place whether it had one or not.
pub fn take_place(call: &Call, resource: &str, session: Uuid) -> Result<()> {
    if places(call.db(), vec![resource], &[session]).is_empty() {
        let full = vec![Value::Uuid(session), Value::Long(MAX_PLACES as i64 - 1)];
        if !call.db().run(&FULL, full, |_| ()).is_empty() {
            return Err(Error::PlacesFull.into());
        }
        call.db().execute(&ENTER, vec![Value::Text(resource), Value::Uuid(session)]);
    }
    // Whoever lets go of the resource meanwhile does not see this place yet.
    call.seam().judge(resource);
    Ok(())
}

/// Gives up a session's places for a resource, waiting for whoever is just granting to it. Whether there were any.
pub fn cancel(call: &Call, resource: &str, at: SlotRef) -> bool {
    let table = table();
    let found = places(call.db(), vec![resource], &[at.session()]);
    let mut mine: Vec<_> =
        found.into_values().flatten().filter(|place| table.lock(*place, true) == Locked::Mine).collect();
    leave(call.db(), &mut mine);
    if !mine.is_empty() {
        call.seam().judge(resource);
        call.seam().revise(at);
    }
    !mine.is_empty()
}

/// Has the worker look at what sessions wait for: they may have been first in line.
pub fn note_places(call: &Call, sessions: &[Uuid]) {
    for (resource, _) in places_of(call.db(), sessions, MAX_PLACES, 0) {
        call.seam().judge(&resource);
    }
}

/// Hands over what the session waits for and nobody has: so that waiters are served with the worker stopped.
pub fn judge_places(call: &Call, at: SlotRef) -> Result<()> {
    let resources: Vec<String> =
        places_of(call.db(), &[at.session()], grant::BATCH, 0).into_iter().map(|(resource, _)| resource).collect();
    if !resources.is_empty() {
        hand_over(call, resources, &|_| false)?;
    }
    Ok(())
}

/// What came of a hand-over.
#[derive(Default)]
pub struct HandOver {
    pub granted: HashSet<String>,
    /// Waited for and free or dead, but in somebody's hands for now.
    pub busy: HashSet<String>,
    /// Waited for, and held by the living.
    pub held: Vec<(String, LeaseRow)>,
}

/// Hands over resources to the first in line. `letting_go` says of a row that this transaction releases it, and that it keeps fenced
/// transactions away from its fence.
pub fn hand_over(call: &Call, resources: Vec<String>, letting_go: &dyn Fn(&LeaseRow) -> bool) -> Result<HandOver> {
    let mut result = HandOver::default();
    // Few resources are waited for; only these are worth a look at their lease.
    let mut first = first_in_line(call, resources.iter().map(String::as_str).collect(), &[]);
    if first.is_empty() {
        return Ok(result);
    }
    let leases = Leases::open();
    let mut free = free_among(call, &leases, first.keys(), letting_go, &mut result)?;
    let (mut ending, mut ready) = (Vec::new(), HashMap::<Uuid, SlotRef>::new());
    // Each round leaves out those that were found to be ending, so there are no more rounds than such waiters.
    loop {
        first.retain(|resource, _| free.contains_key(resource));
        if first.is_empty() {
            break;
        }
        let skipped = admit(call, first.values().copied().collect(), &mut ready);
        let (again, now): (Vec<_>, Vec<_>) = first.into_iter().partition(|(_, session)| skipped.contains(session));
        let pairs = now.iter().map(|(resource, session)| (resource.as_str(), *session));
        let (names, sessions): (Vec<&str>, Vec<Uuid>) = pairs.unzip();
        let mut places = places(call.db(), names, &sessions);
        let candidates = now.iter().filter_map(|(resource, session)| {
            Some(Candidate {
                resource: resource.clone(),
                released: free.get(resource)?.is_some_and(|row| letting_go(&row)),
                row: free.remove(resource)?,
                grantee: *ready.get(session)?,
                // Without a place it has just given up waiting, and is not to be given what it no longer asks for.
                places: places.remove(&(resource.clone(), *session))?,
            })
        });
        let granted = grant::grant(call, &leases, candidates.collect());
        for (resource, _) in now {
            let which = if granted.contains_key(&resource) { &mut result.granted } else { &mut result.busy };
            which.insert(resource);
        }
        ending.extend(skipped);
        first = first_in_line(call, again.iter().map(|(resource, _)| resource.as_str()).collect(), &ending);
        // Whoever was skipped may come back: what nobody else waits for is not done with.
        let unserved = again.into_iter().map(|(resource, _)| resource).filter(|resource| !first.contains_key(resource));
        result.busy.extend(unserved);
        pgrx::check_for_interrupts!();
    }
    call.database.add(Counter::HandOvers, result.granted.len() as u64);
    Ok(result)
}

/// Those of the resources that nobody alive has, with their rows.
fn free_among<'a>(
    call: &Call,
    leases: &Leases,
    resources: impl Iterator<Item = &'a String>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<HashMap<String, Option<LeaseRow>>> {
    let mut free = HashMap::new();
    let mut held = Vec::new();
    for resource in resources {
        match leases.glance(resource, 0) {
            Probe::Absent => {
                free.insert(resource.clone(), None);
            }
            Probe::InFlight(_) => {
                result.busy.insert(resource.clone());
            }
            Probe::Row(row) if row.session.is_none() || letting_go(&row) => {
                free.insert(resource.clone(), Some(row));
            }
            Probe::Row(row) => held.push((resource, row)),
        }
    }
    let holders = Holders::of(call, held.iter().filter_map(|(_, row)| row.session));
    let (theirs, dead): (Vec<_>, Vec<_>) = held.into_iter().partition(|(_, row)| holders.living(row.session).is_some());
    free.extend(dead.into_iter().map(|(resource, row)| (resource.clone(), Some(row))));
    result.held.extend(theirs.into_iter().map(|(resource, row)| (resource.clone(), row)));
    Ok(free)
}

/// Takes away the places that living holders have in the queues of what they hold: one connection of a session may queue while
/// another is just granted the same. The rows of the leases are locked, for else the holder could have released and queued anew since
/// they were read; so this is for the worker, whose transactions are short.
pub fn leave_own(call: &Call, held: Vec<(String, LeaseRow)>) {
    let pairs = held.iter().filter_map(|(resource, row)| Some((resource.as_str(), row.session?)));
    let (resources, sessions): (Vec<&str>, Vec<Uuid>) = pairs.unzip();
    if resources.is_empty() {
        return;
    }
    let mut own = places(call.db(), resources, &sessions);
    let (leases, table) = (Leases::open(), table());
    let mut stale = Vec::new();
    for (resource, row) in held {
        let tids = row.session.and_then(|session| own.remove(&(resource, session))).unwrap_or_default();
        if !tids.is_empty() && leases.lock(row.tid, false) == Locked::Mine {
            stale.extend(tids.into_iter().filter(|place| table.lock(*place, false) == Locked::Mine));
        }
    }
    leave(call.db(), &mut stale);
}

/// Takes G of the sessions in share mode and reads their rows after that. Gives those that are not to be granted to.
fn admit(call: &Call, sessions: HashSet<Uuid>, ready: &mut HashMap<Uuid, SlotRef>) -> HashSet<Uuid> {
    let new: Vec<Uuid> = sessions.into_iter().filter(|session| !ready.contains_key(session)).collect();
    let (open, mut skipped): (Vec<Uuid>, HashSet<Uuid>) = {
        let (open, closed): (Vec<_>, Vec<_>) =
            new.into_iter().partition(|session| Guard::Grantee(*session).try_lock(Mode::Shared));
        (open, closed.into_iter().collect())
    };
    skipped.extend(&open);
    for row in session::rows(&open) {
        // One whose end is being committed has leases still, but is not to get more.
        let alive = call.standing_of(&row).is_some_and(|standing| standing.state == State::Alive);
        if let Ok(Some(at)) = call.slot_of(&row)
            && alive
            && !row.draining
        {
            ready.insert(row.session, at);
            skipped.remove(&row.session);
        }
    }
    skipped
}

/// The living among the holders of leases, each with its row.
pub struct Holders(HashMap<Uuid, (SessionRow, Standing)>);

impl Holders {
    pub fn of(call: &Call, sessions: impl Iterator<Item = Uuid>) -> Holders {
        let sessions: Vec<Uuid> = sessions.collect::<HashSet<_>>().into_iter().collect();
        let mut living = HashMap::new();
        if !sessions.is_empty() {
            for row in session::rows(&sessions) {
                if let Some(standing) = call.standing_of(&row) {
                    living.insert(row.session, (row, standing));
                }
            }
        }
        Holders(living)
    }

    pub fn living(&self, session: Option<Uuid>) -> Option<&(SessionRow, Standing)> {
        self.0.get(&session?)
    }
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
