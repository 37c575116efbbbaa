//! Granting: the one place where a lease gets an owner. A holder's release, a waiter's own acquire and the worker all come here.
//!
//! A candidate is granted if nobody is in its way, and left alone otherwise; nothing here waits. In order:
//!
//! 1. The caller has taken G(grantee) in share mode and read the grantee's row after that, so the session cannot end under the
//!    grant without the worker seeing the lease (see [`crate::sweep`]).
//! 2. F(old fence) must be free: no fenced transaction of the old holder is open, and none can begin (see [`crate::fence`]).
//! 3. The grantee's places in the queue and the row of the lease are locked. A name without a row has nothing to lock: whoever makes
//!    the row holds the name's stripe for the time of the call, and looks again under it, what is not committed included.
//! 4. The fence is drawn with the row in hand, so it is greater than that of every owner before.

use crate::call::Call;
use crate::claim::{LeaseRow, Leases, Probe};
use crate::fence;
use crate::guard::{Guard, Mode};
use crate::keys;
use crate::liveness::databases::Counter;
use crate::liveness::slots::SlotRef;
use crate::queue;
use crate::spi::{Statement, Value};
use crate::table::{Locked, Table};
use pgrx::Uuid;
use pgrx::pg_sys::{self, INT4OID, ItemPointerData, TEXTARRAYOID, UUIDOID};
use std::collections::{BTreeMap, BTreeSet, HashMap};

static INSERT: Statement =
    Statement::writes(include_str!("../sql/query/lease/insert.sql"), &[TEXTARRAYOID, UUIDOID, INT4OID]);
static UPDATE: Statement =
    Statement::writes(include_str!("../sql/query/lease/update.sql"), &[TEXTARRAYOID, UUIDOID, INT4OID]);

/// Leases granted in one statement: what bounds the stripes held at one time.
pub const BATCH: usize = 500;
/// Far more than calls that make new names at one time, so that few meet on a stripe by accident.
const STRIPES: u64 = 1 << 16;
/// Tries for a stripe, half a millisecond apart: it is held for the time of a statement.
const STRIPE_TRIES: u32 = 30;

pub struct Candidate {
    pub resource: String,
    /// The row as probed; `None` for a name without one.
    pub row: Option<LeaseRow>,
    /// Whether this transaction releases it, and so keeps fenced transactions away itself.
    pub released: bool,
    pub grantee: SlotRef,
    /// The grantee's places in the queue of the resource.
    pub places: Vec<ItemPointerData>,
}

/// The timeline that new fences belong to.
pub fn timeline() -> i32 {
    // SAFETY: no preconditions outside of recovery
    unsafe { pg_sys::GetWALInsertionTimeLine() }.cast_signed()
}

/// Grants to the candidates that nobody is in the way of: their fences by resource.
pub fn grant(call: &Call, leases: &Leases, candidates: Vec<Candidate>) -> HashMap<String, i64> {
    let mut fences = HashMap::new();
    let mut candidates = candidates.into_iter().peekable();
    while candidates.peek().is_some() {
        grant_batch(call, leases, candidates.by_ref().take(BATCH).collect(), &mut fences);
    }
    fences
}

fn grant_batch(call: &Call, leases: &Leases, mut candidates: Vec<Candidate>, fences: &mut HashMap<String, i64>) {
    let stripes = take_stripes(&candidates);
    let waiters = queue::table();
    candidates.retain(|candidate| claim(leases, &waiters, candidate, &stripes));
    if !candidates.is_empty() {
        fence::raise(call);
        write(call, &candidates, fences);
        let mut places: Vec<_> = candidates.iter().flat_map(|candidate| candidate.places.iter().copied()).collect();
        queue::leave(call.db(), &mut places);
    }
    for stripe in stripes {
        Guard::Stripe(stripe).unlock(Mode::Exclusive);
    }
    for candidate in &candidates {
        call.seam().changed(&candidate.resource);
        call.seam().revise(candidate.grantee);
        let taken_over = candidate.row.is_some_and(|row| row.session.is_some());
        call.database.add(if taken_over { Counter::Takeovers } else { Counter::Grants }, 1);
    }
}

fn stripe(resource: &str) -> u16 {
    (keys::fnv1a(resource) % STRIPES) as u16
}

/// The stripes of the new names among the candidates, as far as they are to be had; in order.
fn take_stripes(candidates: &[Candidate]) -> BTreeSet<u16> {
    let new = candidates.iter().filter(|candidate| candidate.row.is_none());
    let wanted: BTreeSet<u16> = new.map(|candidate| stripe(&candidate.resource)).collect();
    let mut tries = STRIPE_TRIES;
    let mut take = |stripe: &u16| loop {
        if Guard::Stripe(*stripe).try_lock(Mode::Exclusive) {
            return true;
        }
        tries = tries.saturating_sub(1);
        if tries == 0 {
            return false;
        }
        // SAFETY: sleeps for half a millisecond
        unsafe { pg_sys::pg_usleep(500) };
    };
    wanted.into_iter().filter(|stripe| take(stripe)).collect()
}

fn claim(leases: &Leases, waiters: &Table, candidate: &Candidate, stripes: &BTreeSet<u16>) -> bool {
    let fenced = |row: LeaseRow| row.session.is_some() && !candidate.released && !Guard::Fence(row.fence).is_free();
    if candidate.row.is_some_and(fenced) {
        return false;
    }
    if !candidate.places.iter().all(|place| waiters.lock(*place, false) == Locked::Mine) {
        return false;
    }
    match &candidate.row {
        Some(row) => leases.lock(row.tid, false) == Locked::Mine,
        None => {
            stripes.contains(&stripe(&candidate.resource))
                && matches!(leases.probe(&candidate.resource, 0), Probe::Absent)
        }
    }
}

/// Writes the rows, a statement for each grantee and kind.
fn write(call: &Call, candidates: &[Candidate], fences: &mut HashMap<String, i64>) {
    let mut statements: BTreeMap<(Uuid, bool), Vec<&str>> = BTreeMap::new();
    for candidate in candidates {
        let group = (candidate.grantee.session(), candidate.row.is_none());
        statements.entry(group).or_default().push(&candidate.resource);
    }
    for ((session, is_new), resources) in statements {
        let statement = if is_new { &INSERT } else { &UPDATE };
        let values = vec![Value::Texts(resources), Value::Uuid(session), Value::Int(timeline())];
        fences.extend(call.db().run(statement, values, |row| (row.text(1), row.long(2))));
    }
}
