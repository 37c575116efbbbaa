//! Granting: the one place where a lease gets a new fence. Releases, acquires, rebalances, take-overs and the worker
//! all come here.
//!
//! A candidate is granted if nothing is in its way, and skipped otherwise; no step waits. The steps, in order:
//!
//! 1. The caller has taken G(grantee) in share mode, and read the grantee's row after that. So a session that ends
//!    during the grant does not leave the lease behind unseen (see [`crate::ending::sweep`]).
//! 2. F(old fence) must be free or held by this transaction: no fenced transaction of the old holder is open, and none
//!    can begin (see [`crate::lease::fence`]).
//! 3. The grantee's places in line are locked first, then the row of the lease. If this transaction locks a lease's row
//!    but does not grant the lease, no other session can get the lease until the transaction ends. A slot without a row
//!    has nothing to lock. So the maker of the row holds the slot's stripe for the time of the call, and looks again
//!    under it, uncommitted rows included.
//! 4. A session has at most one permit of a semaphore. The granter takes P(resource, grantee) to the end of the
//!    transaction, and looks for another permit. A call that takes a permit back out of grace does the same.
//! 5. The fence is drawn after the row is locked, so it is greater than that of every owner before.
//! 6. Only the worker grants the lease of a bridge, and only while it has the lock or the row (see [`crate::bridge`]).
//!    Exception: any call may give the bridge's holder a new fence.
//! 7. A granted slot is given back at once if the declaration has changed meanwhile (see
//!    [`crate::lease::declaration`]).

use super::candidate::{Candidate, Grant};
use super::declaration::{self, Kind, Stands};
use super::free::free;
use super::row::{LeaseRow, Leases, Owner, Probe, Seat};
use super::seat::is_only_permit;
use super::{fence, history, line, refence};
use crate::base::limits;
use crate::call::Call;
use crate::keys;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::Locked;
use crate::shmem::counters::Counter;
use pgrx::Uuid;
use pgrx::pg_sys::{BOOLOID, INT4ARRAYOID, INT4OID, ItemPointerData, TEXTARRAYOID, UUIDOID};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

static INSERT: Statement = Statement::writes(
    include_str!("../../sql/query/lease/insert.sql"),
    &[TEXTARRAYOID, INT4ARRAYOID, UUIDOID, INT4OID, BOOLOID],
);
static UPDATE: Statement = Statement::writes(
    include_str!("../../sql/query/lease/update.sql"),
    &[TEXTARRAYOID, INT4ARRAYOID, UUIDOID, INT4OID, BOOLOID],
);

/// Grants each candidate its slot, unless something is in the way of that grant.
pub fn grant(call: &Call, leases: &Leases, candidates: Vec<Candidate>) -> HashMap<Seat, Grant> {
    let mut granted = HashMap::new();
    let mut candidates = candidates.into_iter().peekable();
    while candidates.peek().is_some() {
        grant_batch(call, leases, candidates.by_ref().take(limits::GRANT_BATCH).collect(), &mut granted);
    }
    granted
}

fn grant_batch(call: &Call, leases: &Leases, mut candidates: Vec<Candidate>, granted: &mut HashMap<Seat, Grant>) {
    let stripes = take_stripes(call, &candidates);
    // Declarations are read after the stripes are taken, and only if needed: most candidates have a row.
    let none = LazyCell::new(|| call.declarations().none());
    let plain = |resource: &str| *none || matches!(call.declarations().stands(resource), Stands::Absent);
    candidates.retain(|candidate| claim(call, leases, candidate, &stripes, &plain));
    let mut done = Vec::new();
    if !candidates.is_empty() {
        // The first grant of a start raises the fences. A call that loses the race for a new name does not get this
        // far, so it does not wait for the raise.
        fence::raise(call);
        refence::see_to_mark(call);
        done = write(call, leases, candidates);
        give_back(call, leases, &mut done);
        let mut places: Vec<_> = done.iter().flat_map(|(candidate, _)| candidate.places.iter().copied()).collect();
        line::leave(call, &mut places);
    }
    for stripe in stripes {
        Guard::Stripe(stripe).unlock(Mode::Exclusive);
    }
    let (mut grantees, mut dead_owners) = (Vec::new(), Vec::new());
    for (candidate, _) in &done {
        call.seam().changed(&candidate.resource, candidate.slot);
        grantees.push(candidate.grantee);
        if let Some((dead, _)) = candidate.taken_from().filter(|_| !candidate.released) {
            dead_owners.push(dead);
        }
        dead_owners.extend(candidate.gone.iter());
        let had_owner = candidate.row.is_some_and(|row| row.session.is_some());
        call.seam().count(if had_owner { Counter::Takeovers } else { Counter::Grants }, 1);
    }
    // One session may be granted many leases.
    grantees.sort_unstable_by_key(|at| *at.session().as_bytes());
    grantees.dedup();
    grantees.into_iter().for_each(|grantee| call.seam().revise(grantee));
    dead_owners.sort_unstable_by_key(|dead| *dead.as_bytes());
    dead_owners.dedup();
    call.taken_from(&dead_owners);
    history::granted(call, &done);
    granted.extend(done.into_iter().map(|(candidate, fence)| {
        let Candidate { resource, slot, grantee, .. } = candidate;
        ((resource, slot), Grant { fence, session: grantee.session() })
    }));
}

/// Takes the stripes of the candidates without a row, in ascending order. Returns the stripes that it got.
fn take_stripes(call: &Call, candidates: &[Candidate]) -> BTreeSet<u16> {
    let new = candidates.iter().filter(|candidate| candidate.row.is_none());
    let wanted: BTreeSet<u16> = new.map(|candidate| keys::stripe(&candidate.resource, candidate.slot)).collect();
    let take = |stripe: &u16| loop {
        if Guard::Stripe(*stripe).try_lock(Mode::Exclusive) {
            return true;
        }
        let Some(left) = call.stripe_pauses.get().checked_sub(1) else { return false };
        call.stripe_pauses.set(left);
        clock::pause(limits::STRIPE_PAUSE);
    };
    wanted.into_iter().filter(take).collect()
}

/// Locks the places and the slot of a candidate, if nothing is in its way. `plain` returns whether a name is not
/// declared.
fn claim(
    call: &Call,
    leases: &Leases,
    candidate: &Candidate,
    stripes: &BTreeSet<u16>,
    plain: &dyn Fn(&str) -> bool,
) -> bool {
    let fenced = |row: LeaseRow| row.session.is_some() && !candidate.released && !Guard::Fence(row.fence).is_free();
    if candidate.row.is_some_and(fenced) {
        return false;
    }
    let allowed = match candidate.declared {
        Some((Kind::Semaphore, _)) => {
            is_only_permit(call, &candidate.resource, candidate.slot, candidate.grantee.session())
        }
        Some((kind, _)) => candidate.is_own() || kind.rules().may_grant(&candidate.resource),
        None => true,
    };
    if !allowed {
        return false;
    }
    let places =
        candidate.places.iter().take_while(|place| call.waiters().lock(**place, false) == Locked::Mine).count();
    let granted = places == candidate.places.len() && takes_slot(leases, candidate, stripes, plain);
    let has_seat = matches!(candidate.declared, Some((Kind::Semaphore, _)));
    if !granted && (places > 0 || has_seat) {
        // The rows that this transaction has locked without a grant are in the way of other sessions until it ends.
        call.seam().judge(&candidate.resource);
    }
    granted
}

/// Locks the row of a candidate's slot, or checks under the stripe that there is none. Returns false if another
/// transaction has locked or changed the slot.
fn takes_slot(leases: &Leases, candidate: &Candidate, stripes: &BTreeSet<u16>, plain: &dyn Fn(&str) -> bool) -> bool {
    match &candidate.row {
        Some(row) => leases.lock(row.tid, false) == Locked::Mine,
        None => {
            stripes.contains(&keys::stripe(&candidate.resource, candidate.slot))
                && matches!(leases.probe(&candidate.resource, candidate.slot), Probe::Absent)
                && (candidate.declared.is_some() || plain(&candidate.resource))
        }
    }
}

/// Writes the rows and returns the new fences. If the table is as this extension made it, writes row by row; otherwise
/// a statement writes all rows with the same grantee that are alike.
fn write(call: &Call, leases: &Leases, candidates: Vec<Candidate>) -> Vec<(Candidate, i64)> {
    if leases.is_plain() {
        let give = |candidate: Candidate| {
            let owner = Owner {
                session: candidate.grantee.session(),
                fence: fence::next(call),
                timeline: refence::timeline(),
                declared: candidate.declared.is_some(),
            };
            leases.give(&candidate.resource, candidate.slot, candidate.row.map(|row| row.tid), &owner);
            (candidate, owner.fence)
        };
        spi::durably();
        return candidates.into_iter().map(give).collect();
    }
    let mut statements: BTreeMap<(Uuid, bool, bool), (Vec<&str>, Vec<i32>)> = BTreeMap::new();
    for candidate in &candidates {
        let group = (candidate.grantee.session(), candidate.row.is_none(), candidate.declared.is_some());
        let (resources, slots) = statements.entry(group).or_default();
        resources.push(&candidate.resource);
        slots.push(candidate.slot);
    }
    let mut fences = HashMap::<Seat, i64>::new();
    for ((session, is_new, declared), (resources, slots)) in statements {
        let values = vec![
            Value::Texts(resources),
            Value::Ints(&slots),
            Value::Uuid(session),
            Value::Int(refence::timeline()),
            Value::Bool(declared),
        ];
        let statement = if is_new { &INSERT } else { &UPDATE };
        fences.extend(call.db().run(statement, values, |row| ((row.text(1), row.int(2)), row.long(3))));
    }
    if let Some(last) = fences.values().max() {
        fence::hold_back(call, &call.database.fences, *last);
    }
    let fence = |candidate: &Candidate| fences.get(&(candidate.resource.clone(), candidate.slot)).copied();
    candidates.into_iter().filter_map(|candidate| fence(&candidate).map(|fence| (candidate, fence))).collect()
}

/// Frees the granted slots of resources whose declaration has changed meanwhile.
fn give_back(call: &Call, leases: &Leases, done: &mut Vec<(Candidate, i64)>) {
    let declared = |(candidate, _): &(Candidate, i64)| Some((candidate.resource.clone(), candidate.declared?));
    let mut changed: HashSet<(String, (Kind, i32))> = done.iter().filter_map(declared).collect();
    changed.retain(|(resource, declared)| !declaration::still(resource, *declared));
    if changed.is_empty() {
        return;
    }
    let gone = |done: &(Candidate, i64)| declared(done).is_some_and(|seen| changed.contains(&seen));
    let changed: Vec<(Seat, ItemPointerData)> = done
        .extract_if(.., |done| gone(done))
        .filter_map(|(Candidate { resource, slot, .. }, _)| {
            let tid = leases.row(&resource, slot)?.tid;
            Some(((resource, slot), tid))
        })
        .collect();
    free(call, &changed, false);
}
