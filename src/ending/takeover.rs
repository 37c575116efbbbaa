//! Take-over: a process that has been restarted inherits from its former session.
//!
//! A session opened with `takeover` ends the living sessions of the same consumer and role, in the transaction that
//! opens it. The new session gets what they have under new fences: leases, permits, places in line, memberships and
//! partitions. What `lock_acquire` and grace keep in private sessions stays there; the successor may acquire leases in
//! grace (see [`crate::lease::grace`]). A predecessor ends as by `session_close`, but other sessions get nothing of it
//! except the work items that it has claimed:
//!
//! * **Leases** are granted to the successor without waiting for any other transaction. The take-over holds S of the
//!   predecessor exclusively. If a transaction of the predecessor is fenced, the take-over cannot have S, and holds F
//!   of each lease that is not fenced. A fenced lease stays until its transaction ends. Meanwhile the successor is at
//!   the head of its line, and is the target of a fenced partition.
//! * **Leases that could not be passed on** were fenced, or were being granted to the predecessor. The sweep passes
//!   them on: a row of its own names the successor of each dead session. If the successor drains, others get them. If
//!   the predecessor was still in line for a resource that it is being granted, the successor is also at the head of
//!   that line.
//! * **Memberships** pass on at the commit, or by the sweep. So a take-over that is left open or prepared does not stop
//!   a group from being rebalanced. Until then the memberships stand in the predecessor's name, and each reader of a
//!   group takes the successor for the member (see [`crate::group`]).

use super::log;
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::Call;
use crate::group;
use crate::lease::candidate::Candidate;
use crate::lease::declaration::{self, Kind};
use crate::lease::handover::admit;
use crate::lease::row::{self, LeaseRow, Leases, Seat};
use crate::lease::{free, grant, history, line};
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Locked, Table, Tuple, page_of};
use crate::pg::text::role_name;
use crate::pg::{catalog, clock};
use crate::session::holders::living_rows;
use crate::session::named::Name;
use crate::session::{SessionRow, delete, lock_row, lock_rows, row, succession};
use crate::shmem::slots::SlotRef;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{ItemPointerData, Oid, UUIDARRAYOID, UUIDOID};
use pgrx::{PgLogLevel, Uuid};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

static SUCCEED: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/succeed.sql"), &[UUIDOID, UUIDOID]);
static REDIRECT: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/redirect.sql"), &[UUIDOID, UUIDOID]);
static ADOPT: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/adopt.sql"), &[UUIDARRAYOID, UUIDOID]);

/// Ends the living sessions of the consumer and role, and has the new session inherit from them.
pub fn take_over(call: &Call, new: SlotRef, consumer: &str) -> Result<()> {
    let mut found_any = false;
    loop {
        let mut found = predecessors(consumer, call.caller, new.session());
        // Rows are locked in the order of sessions, as other take-overs lock them.
        found.sort_unstable_by_key(|session| *session.as_bytes());
        let mut again = false;
        found_any |= !found.is_empty();
        for old in found {
            // As in session_close, the guard comes first if this call has to wait for it, then the row.
            if held(old, limits::MAX_FENCES + 1).len() > limits::MAX_FENCES {
                Guard::Fencer(old).lock(Mode::Exclusive);
            }
            match lock_row(old) {
                Some(old) => match call.living(old.session)? {
                    Some(at) => {
                        succeed(call, &old, at, new)?;
                        log::taken_over(call, consumer);
                        again = true;
                    }
                    // The session is already dead. It must not live beside the new one after a restart.
                    None => call.taken_from(&[old.session]),
                },
                // Another take-over came first. This one now finds the other's session as its predecessor.
                None => again = true,
            }
        }
        if !again {
            break;
        }
    }
    if !found_any && catalog::has_objects_of_today() {
        warn_of_other_role(call, consumer);
    }
    Ok(())
}

/// Warns a take-over that found no session, if another role has opened a living session of the same consumer. An error
/// would let any role keep any other from taking over.
fn warn_of_other_role(call: &Call, consumer: &str) {
    let others = Name::of(consumer, call.caller).of_other_roles();
    if let Some(other) = living_rows(call, &others).pop() {
        let (consumer, owner) = (consumer.to_owned(), role_name(Oid::from(other.role)));
        let warning = Error::NotTakenOver { consumer, owner, caller: role_name(call.caller) };
        ErrorReport::from(warning).report(PgLogLevel::WARNING);
    }
}

fn succeed(call: &Call, old: &SessionRow, at: SlotRef, new: SlotRef) -> Result<()> {
    let (from, to) = (old.session, new.session());
    // The succession is written before this transaction takes any lock that a hand-over may find in its way: the
    // hand-over then asks whether there is a successor.
    call.db().execute(&SUCCEED, vec![Value::Uuid(from), Value::Uuid(to)]);
    // The guard is already held if the predecessor holds more leases than there is room for locks.
    let excluded = Guard::Fencer(from).try_lock(Mode::Exclusive);
    // While another transaction grants to the predecessor, this one does not see the grant; the sweep passes it on. The
    // guard is tried before the leases are read, because the grant may have committed by then.
    let alone = Guard::Grantee(from).try_lock(Mode::Exclusive);
    let seats = held(from, usize::MAX);
    delete(call, &[from]);
    let of_former = Table::open(c"_successions", c"_successions_successor");
    let redirected = of_former.update_rows(&[Key::Uuid(from)], |_| Some(vec![(2, Value::Uuid(to).datum())]));
    call.written(redirected, &REDIRECT, vec![Value::Uuid(from), Value::Uuid(to)]);
    let free = |row: &LeaseRow| (excluded || Guard::Fence(row.fence).try_lock(Mode::Exclusive)).then_some(true);
    let Inheritance { left, ahead, .. } =
        inherit(call, from, new, seats, &free, || group::inherit_at_commit(call, from));
    // Graces are read after the leases. A lease that went into grace meanwhile is found here; one that is just going
    // into grace stays behind.
    let left = !adopt_graces(call, from, to) || left;
    for resource in ahead {
        line::take_first_place(call, &resource, to);
        // The successor may already be first in line, by its predecessor's place; it must still hear of the resource.
        call.seam().judge(&resource);
    }
    call.seam().ended(at, false);
    call.seam().revise(new);
    if alone && !left {
        succession::forget(call, &[from]);
    }
    Ok(())
}

/// Returns the sessions of a consumer and role that have a row, except private ones and `but`. Some may be dead.
fn predecessors(consumer: &str, role: Oid, but: Uuid) -> Vec<Uuid> {
    let mut found = Name::of(consumer, role).sessions();
    found.retain(|session| *session != but);
    found
}

/// Passes the leases in grace of a predecessor on to its successor. Returns false if another transaction has locked the
/// row of any of their private sessions. Until that transaction ends, a reader of such a lease finds the successor by
/// the succession.
fn adopt_graces(call: &Call, from: Uuid, to: Uuid) -> bool {
    let (graces, left) = lock_rows(page_of(&succession::graces(), &[from], usize::MAX, 0, |row| Some(row.required(1))));
    let sessions = crate::session::table();
    let adopt = |_: &Tuple| Some(vec![(10, Value::Uuid(to).datum())]);
    let adopted = graces.iter().map(|session| sessions.update_rows(&[Key::Uuid(*session)], adopt)).sum();
    call.written(adopted, &ADOPT, vec![Value::Uuids(&graces), Value::Uuid(to)]);
    !left
}

/// Returns up to `most` seats that a session holds.
fn held(session: Uuid, most: usize) -> Vec<Seat> {
    row::held_by(&[session], most, 0).into_iter().map(|(seat, _)| seat).collect()
}

/// The result of passing on what a session has.
struct Inheritance {
    leases: usize,
    /// Whether anything is left.
    left: bool,
    /// Resources whose line the successor will lead: they are fenced, or being granted to its predecessor.
    ahead: Vec<String>,
}

/// Passes on what a session has. Passes on nothing if the successor is just ending, because the successor would leave
/// it behind. `free` returns `None` for a lease that may not be taken, and otherwise whether this transaction keeps
/// fenced transactions away from that lease. `join` passes on the memberships and returns whether none is left.
fn inherit(
    call: &Call,
    from: Uuid,
    to: SlotRef,
    seats: Vec<Seat>,
    free: &dyn Fn(&LeaseRow) -> Option<bool>,
    join: impl FnOnce() -> bool,
) -> Inheritance {
    debug_assert_ne!(from, to.session(), "no session succeeds itself");
    if !admit(call, HashSet::from([to.session()]), &mut HashMap::new()).is_empty() {
        return Inheritance { leases: 0, left: true, ahead: Vec::new() };
    }
    let joined = join();
    let leases = Leases::open();
    // The successor may have been put at the head of the line of a lease that it gets now.
    let names: Vec<&str> = seats.iter().map(|(resource, _)| resource.as_str()).collect();
    let mut places = line::places(&names, &vec![to.session(); seats.len()]);
    let (mut candidates, mut spare, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    for seat in seats {
        let Some(row) = leases.row(&seat.0, seat.1).filter(|row| row.session == Some(from)) else { continue };
        let declaration = if row.declared { declaration::of(&seat.0) } else { None };
        let declared = declaration.map(|known| (known.kind, known.slots));
        // The successor gets one permit of a semaphore at most. A permit of a dead session beyond the number of permits
        // is taken back.
        let is_spare = |released: bool, (kind, slots): (Kind, i32)| {
            let beyond = !released && seat.1 >= slots;
            kind == Kind::Semaphore && (beyond || !row::of_session(&seat.0, to.session()).is_empty())
        };
        match free(&row) {
            Some(released) if declared.is_some_and(|declared| is_spare(released, declared)) => {
                spare.push((seat, row, released));
            }
            Some(released) => {
                let (row, inherited, grantee) = (Some(row), true, to);
                let places = places.remove(&(seat.0.clone(), to.session())).unwrap_or_default();
                let (resource, slot) = seat;
                let gone = Rc::default();
                candidates.push(Candidate {
                    resource,
                    slot,
                    declared,
                    row,
                    released,
                    inherited,
                    grantee,
                    places,
                    gone,
                });
            }
            None => missed.push((seat, declared)),
        }
    }
    let wanted: Vec<(Seat, Option<(Kind, i32)>)> =
        candidates.iter().map(|wanted| ((wanted.resource.clone(), wanted.slot), wanted.declared)).collect();
    let granted = grant::grant(call, &leases, candidates);
    missed.extend(wanted.into_iter().filter(|(seat, _)| !granted.contains_key(seat)));
    let kept = give_up(call, &leases, spare);
    let mut ahead = line::inherit(call, from, to.session());
    let left = !joined || kept || !ahead.is_empty() || !missed.is_empty();
    for ((resource, _), declared) in missed {
        // The successor is already the target of a partition.
        if declared.is_none_or(|(kind, _)| kind != Kind::Group) {
            ahead.push(resource);
        } else {
            call.seam().judge(&resource);
        }
    }
    Inheritance { leases: granted.len(), left, ahead }
}

/// Frees permits of semaphores that the successor may not have. Returns whether any is left.
fn give_up(call: &Call, leases: &Leases, spare: Vec<(Seat, LeaseRow, bool)>) -> bool {
    let count = spare.len();
    let free = |row: &LeaseRow, released: bool| {
        (released || Guard::Fence(row.fence).is_free()) && leases.lock(row.tid, false) == Locked::Mine
    };
    let freed = spare.into_iter().filter(|(_, row, released)| free(row, *released));
    let freed: Vec<(Seat, LeaseRow)> = freed.map(|(seat, row, _)| (seat, row)).collect();
    history::freed(call, freed.iter().map(|(seat, row)| (seat, row.fence, row.session)), false);
    let freed: Vec<(Seat, ItemPointerData)> = freed.into_iter().map(|(seat, row)| (seat, row.tid)).collect();
    free::free(call, &freed, false);
    for ((resource, slot), _) in &freed {
        call.seam().changed(resource, *slot);
        call.seam().judge_at(resource, clock::now());
    }
    freed.len() < count
}

/// The result of passing on what is left of dead sessions.
#[derive(Default)]
pub struct Inherited {
    /// Sessions with a successor that inherits: nothing of them goes to any other session.
    pub sessions: HashSet<Uuid>,
    pub leases: usize,
    /// Whether anything is left.
    pub left: bool,
}

/// Passes on what is left of dead sessions that have living successors, up to `most` leases of each.
pub fn inherit_from_dead(call: &Call, dead: &[Uuid], most: usize) -> Result<Inherited> {
    let (mut inherited, table) = (Inherited::default(), succession::table());
    // Usually no session has been taken over.
    let dead = if table.has_entry(&[]) { dead } else { &[] };
    for (from, to) in dead.iter().filter_map(|from| Some((*from, succession::successor_in(&table, *from)?))) {
        inherited.left |= !adopt_graces(call, from, to);
        let Some(to) = call.living(to)? else { continue };
        if row(to.session()).is_none_or(|row| row.draining) {
            // A successor that drains still owns, as a member, what it had when it began to drain.
            inherited.left |= !group::inherit(call, from, to.session());
            continue;
        }
        let seats = held(from, most);
        let join = || group::inherit(call, from, to.session());
        // Here no guard keeps fenced transactions away, so each lease is tested for an open one.
        let Inheritance { leases, left, .. } = inherit(call, from, to, seats, &|_| Some(false), join);
        inherited.sessions.insert(from);
        inherited.leases += leases;
        inherited.left |= left;
    }
    Ok(inherited)
}
