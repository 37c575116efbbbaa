//! Take-over: a process that has been started again inherits from its former self.
//!
//! A session opened with `takeover` ends the living sessions of the same consumer and role, with its own transaction, and gets what they
//! have under new fences: leases, permits, places in queues, memberships and partitions. (What lock_acquire and grace keep in private
//! sessions is left alone.) A predecessor ends as by session_close, save that nothing of it goes to strangers:
//!
//! * Its leases are granted to the successor, who is in nobody's way: S of the predecessor is held exclusively, or, where a transaction
//!   of its own is fenced, F of each lease that is not. What is fenced stays until that transaction ends; the successor waits for it at
//!   the head of the queue, and a partition has it for its target.
//! * What could not be had (fenced, or in the middle of being granted to the predecessor) is inherited by the sweep, which finds the
//!   successor of a dead session in a row of its own.

use super::{SessionRow, delete, lock_row, row};
use crate::call::Call;
use crate::claim::{LeaseRow, Leases, Seat};
use crate::declaration::{self, Kind};
use crate::error::Result;
use crate::grant::{self, Candidate};
use crate::group;
use crate::guard::{Guard, Mode};
use crate::handover::admit;
use crate::liveness::slots::SlotRef;
use crate::queue;
use crate::spi::{Row, Statement, Value};
use pgrx::Uuid;
use pgrx::pg_sys::{INT8OID, OIDOID, TEXTOID, UUIDARRAYOID, UUIDOID};
use std::collections::{HashMap, HashSet};

static PREDECESSORS: Statement =
    Statement::reads(include_str!("../../sql/query/takeover/predecessors.sql"), &[TEXTOID, OIDOID, UUIDOID]);
static SUCCEED: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/succeed.sql"), &[UUIDOID, UUIDOID]);
static REDIRECT: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/redirect.sql"), &[UUIDOID, UUIDOID]);
static ADOPT: Statement = Statement::writes(include_str!("../../sql/query/takeover/adopt.sql"), &[UUIDOID, UUIDOID]);
static SUCCESSORS: Statement =
    Statement::reads(include_str!("../../sql/query/takeover/successors.sql"), &[UUIDARRAYOID]);
static FORGET: Statement = Statement::tidies(include_str!("../../sql/query/takeover/forget.sql"), &[UUIDARRAYOID]);
static HELD: Statement = Statement::reads(include_str!("../../sql/query/takeover/held.sql"), &[UUIDOID, INT8OID]);

/// Leases of one predecessor for each of which F is held, while one of its transactions is fenced: the lock table has no room for more.
const MAX_FENCES: usize = 1_000;

/// Ends the living sessions of the consumer, of the same role, and has the new one inherit from them.
pub fn take_over(call: &Call, new: SlotRef, consumer: &str) -> Result<()> {
    loop {
        let values = vec![Value::Text(consumer), Value::Oid(call.caller.to_u32()), Value::Uuid(new.session())];
        let found = call.db().run(&PREDECESSORS, values, |row| row.uuid(1));
        let mut ended = 0;
        for old in found {
            // Another take-over may be under way: this one comes after it, and finds the other's session as its predecessor.
            let Some(old) = lock_row(old) else { continue };
            if let Some(at) = call.living(old.session)? {
                succeed(call, &old, at, new)?;
                ended += 1;
            }
        }
        if ended == 0 {
            return Ok(());
        }
    }
}

fn succeed(call: &Call, old: &SessionRow, at: SlotRef, new: SlotRef) -> Result<()> {
    let (from, to) = (old.session, new.session());
    let mut excluded = Guard::Fencer(from).try_lock(Mode::Exclusive);
    let held = || call.db().run(&HELD, vec![Value::Uuid(from), Value::Long(i64::MAX)], seat);
    let mut seats = held();
    if !excluded && seats.len() > MAX_FENCES {
        Guard::Fencer(from).lock(Mode::Exclusive);
        excluded = true;
        seats = held();
    }
    // While somebody is granting to it, what it is given is not to be seen yet: the sweep passes it on.
    let alone = Guard::Grantee(from).try_lock(Mode::Exclusive);
    delete(call.db(), &[from]);
    for statement in [&SUCCEED, &REDIRECT, &ADOPT] {
        call.db().execute(statement, vec![Value::Uuid(from), Value::Uuid(to)]);
    }
    let free = |row: &LeaseRow| (excluded || Guard::Fence(row.fence).try_lock(Mode::Exclusive)).then_some(true);
    for group in group::of_sessions(call, &[from]) {
        group::lock(call, &group);
    }
    let Inheritance { left, ahead, .. } = inherit(call, from, new, seats, &free);
    for resource in ahead {
        queue::take_first_place(call, &resource, to);
        call.seam().judge(&resource);
    }
    call.seam().ended(at, false);
    call.seam().revise(new);
    if alone && !left {
        forget(call, &[from]);
    }
    Ok(())
}

fn seat(row: Row) -> Seat {
    (row.text(1), row.int(2))
}

/// What came of passing on what a session has.
struct Inheritance {
    leases: usize,
    /// Whether anything is left.
    left: bool,
    /// Resources that the successor is to be first in line for: fenced, or just being granted to its predecessor.
    ahead: Vec<String>,
}

/// Passes on what a session has. `free` says of a lease whether it may be taken; and if so, whether this transaction keeps fenced ones
/// away from it.
fn inherit(
    call: &Call,
    from: Uuid,
    to: SlotRef,
    seats: Vec<Seat>,
    free: &dyn Fn(&LeaseRow) -> Option<bool>,
) -> Inheritance {
    let joined = group::inherit(call, from, to.session());
    let mut ahead = queue::inherit(call, from, to.session());
    let leases = Leases::open();
    let able = admit(call, HashSet::from([to.session()]), &mut HashMap::new()).is_empty();
    let (mut candidates, mut wanted) = (Vec::new(), 0);
    for (resource, slot) in seats {
        let Some(row) = leases.row(&resource, slot).filter(|row| row.session == Some(from)) else { continue };
        let declaration = if row.declared { declaration::of(&resource) } else { None };
        let declared = declaration.map(|known| (known.kind, known.slots));
        wanted += 1;
        match free(&row).filter(|_| able) {
            Some(released) => {
                let (row, grantee, places) = (Some(row), to, Vec::new());
                candidates.push(Candidate { resource, slot, declared, row, released, grantee, places });
            }
            // A partition has the successor for its target already.
            None if declared.is_none_or(|(kind, _)| kind == Kind::Semaphore) => ahead.push(resource),
            None => call.seam().judge(&resource),
        }
    }
    let leases = grant::grant(call, &leases, candidates).len();
    Inheritance { leases, left: !joined || !ahead.is_empty() || leases < wanted, ahead }
}

/// What came of passing on what is left of dead sessions.
#[derive(Default)]
pub struct Inherited {
    /// Those that have living successors: nothing of them goes to anybody else.
    pub sessions: HashSet<Uuid>,
    pub leases: usize,
    /// Whether anything is left.
    pub left: bool,
}

/// Passes on what is left of dead sessions that have living successors, up to `most` leases of each.
pub fn inherit_from_dead(call: &Call, dead: &[Uuid], most: usize) -> Result<Inherited> {
    let mut inherited = Inherited::default();
    let successors = call.db().run(&SUCCESSORS, vec![Value::Uuids(dead)], |row| (row.uuid(1), row.uuid(2)));
    for (from, to) in successors {
        let Some(to) = call.living(to)?.filter(|to| row(to.session()).is_some()) else { continue };
        let seats = call.db().run(&HELD, vec![Value::Uuid(from), Value::Long(most as i64)], seat);
        // Nobody keeps fenced transactions away here: whether one is open is tested for each.
        let Inheritance { leases, left, .. } = inherit(call, from, to, seats, &|_| Some(false));
        inherited.sessions.insert(from);
        inherited.leases += leases;
        inherited.left |= left;
    }
    Ok(inherited)
}

/// Forgets the successors of sessions of which nothing is left.
pub fn forget(call: &Call, sessions: &[Uuid]) {
    call.db().execute(&FORGET, vec![Value::Uuids(sessions)]);
}
