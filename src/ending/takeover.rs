//! Take-over: a process that has been started again inherits from its former self.
//!
//! A session opened with `takeover` ends the living sessions of the same consumer and role, with its own transaction,
//! and gets what they have under new fences: leases, permits, places in queues, memberships and partitions. (What
//! lock_acquire and grace keep in private sessions stays there; what is in grace the successor may acquire, see
//! [`crate::lease::grace`].) A predecessor ends as by session_close, save that nothing of it goes to strangers but the
//! work items that it has claimed:
//!
//! * Its leases are granted to the successor, without waiting for any other transaction: S of the predecessor is held
//!   exclusively, or, where a transaction of its own is fenced, F of each lease that is not. What is fenced stays until
//!   that transaction ends. The successor waits for it at the head of the queue, and a partition has it for its target.
//! * What could not be had (fenced, or in the middle of being granted to the predecessor) is inherited by the sweep,
//!   which finds the successor of a dead session in a row of its own; or goes to others if that drains. For what the
//!   predecessor had waited for, and is just granted, the successor is at the head of the queue as well.
//! * Its memberships pass on at the commit, or by the sweep: a take-over that is left open, or prepared, keeps no group
//!   from being rebalanced. Until then they stand in the predecessor's name, and each reader of a group finds the
//!   successor for it (see [`crate::group`]).

use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::group;
use crate::lease::candidate::Candidate;
use crate::lease::declaration::{self, Kind};
use crate::lease::handover::admit;
use crate::lease::row::{self, LeaseRow, Leases, Seat};
use crate::lease::{free, grant, history, line};
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Locked, Table, Tuple, page_of};
use crate::session::named::Name;
use crate::session::{SessionRow, delete, lock_row, lock_rows, row, succession};
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::pg_sys::{ItemPointerData, Oid, UUIDARRAYOID, UUIDOID};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

static SUCCEED: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/succeed.sql"), &[UUIDOID, UUIDOID]);
static REDIRECT: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/redirect.sql"), &[UUIDOID, UUIDOID]);
static ADOPT: Statement =
    Statement::writes(include_str!("../../sql/query/takeover/adopt.sql"), &[UUIDARRAYOID, UUIDOID]);

/// Ends the living sessions of the consumer, of the same role, and has the new one inherit from them.
pub fn take_over(call: &Call, new: SlotRef, consumer: &str) -> Result<()> {
    loop {
        let mut found = predecessors(consumer, call.caller, new.session());
        // In order, as another take-over locks them.
        found.sort_unstable_by_key(|session| *session.as_bytes());
        let mut again = false;
        for old in found {
            // As session_close: first the guard, if it has to wait for it, then the row.
            if held(old, limits::MAX_FENCES + 1).len() > limits::MAX_FENCES {
                Guard::Fencer(old).lock(Mode::Exclusive);
            }
            match lock_row(old) {
                Some(old) => match call.living(old.session)? {
                    Some(at) => {
                        succeed(call, &old, at, new)?;
                        again = true;
                    }
                    // It is not ended here, and must not live beside the new one after a restart.
                    None => call.taken_from(&[old.session]),
                },
                // Another take-over was under way: this one comes after it, and finds the other's session as its
                // predecessor.
                None => again = true,
            }
        }
        if !again {
            return Ok(());
        }
    }
}

fn succeed(call: &Call, old: &SessionRow, at: SlotRef, new: SlotRef) -> Result<()> {
    let (from, to) = (old.session, new.session());
    // Before anything that a hand-over finds in its way: it asks then whether there is a successor.
    call.db().execute(&SUCCEED, vec![Value::Uuid(from), Value::Uuid(to)]);
    // Had already where it holds more than there is room for locks.
    let excluded = Guard::Fencer(from).try_lock(Mode::Exclusive);
    // While another transaction grants to it, that grant cannot be seen yet: the sweep passes it on. Asked before
    // reading what it has, for the grant may be committed by then.
    let alone = Guard::Grantee(from).try_lock(Mode::Exclusive);
    let seats = held(from, usize::MAX);
    delete(call, &[from]);
    let of_former = Table::open(c"_successions", c"_successions_successor");
    let redirected = of_former.update_rows(&[Key::Uuid(from)], |_| Some(vec![(2, Value::Uuid(to).datum())]));
    call.written(redirected, &REDIRECT, vec![Value::Uuid(from), Value::Uuid(to)]);
    let free = |row: &LeaseRow| (excluded || Guard::Fence(row.fence).try_lock(Mode::Exclusive)).then_some(true);
    let Inheritance { left, ahead, .. } =
        inherit(call, from, new, seats, &free, || group::inherit_at_commit(call, from));
    // After that: what was let go of with grace meanwhile is found here, and what is just being let go of is left.
    let left = !adopt_graces(call, from, to) || left;
    for resource in ahead {
        line::take_first_place(call, &resource, to);
        // Also where it is there, in its predecessor's place: that is news to it.
        call.seam().judge(&resource);
    }
    call.seam().ended(at, false);
    call.seam().revise(new);
    if alone && !left {
        succession::forget(call, &[from]);
    }
    Ok(())
}

/// The living sessions, and those that are to be found dead, of a consumer and role, but for one and those that are
/// private.
fn predecessors(consumer: &str, role: Oid, but: Uuid) -> Vec<Uuid> {
    let mut found = Name::of(consumer, role).sessions();
    found.retain(|session| *session != but);
    found
}

/// Has a session acquire what is in grace of its predecessor. Returns false while another transaction has any of that
/// in hand. Until that has ended, a reader of such a grace finds the successor by the succession.
fn adopt_graces(call: &Call, from: Uuid, to: Uuid) -> bool {
    let (graces, left) = lock_rows(page_of(&succession::graces(), &[from], usize::MAX, 0, |row| Some(row.required(1))));
    let sessions = crate::session::table();
    let adopt = |_: &Tuple| Some(vec![(10, Value::Uuid(to).datum())]);
    let adopted = graces.iter().map(|session| sessions.update_rows(&[Key::Uuid(*session)], adopt)).sum();
    call.written(adopted, &ADOPT, vec![Value::Uuids(&graces), Value::Uuid(to)]);
    !left
}

/// Up to so many seats that a session has.
fn held(session: Uuid, most: usize) -> Vec<Seat> {
    row::held_by(&[session], most, 0).into_iter().map(|(seat, _)| seat).collect()
}

/// What came of passing on what a session has.
struct Inheritance {
    leases: usize,
    /// Whether anything is left.
    left: bool,
    /// Resources whose line the successor will lead: fenced, or just being granted to its predecessor.
    ahead: Vec<String>,
}

/// Passes on what a session has. All of it stays while the successor is just ending, which would leave it behind.
/// `free` says of a lease whether it may be taken; and if so, whether this transaction keeps fenced ones away from it.
/// `join` passes on its memberships, and returns whether none is left.
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
    // It may have been put at the head of the queue of what it gets now.
    let names: Vec<&str> = seats.iter().map(|(resource, _)| resource.as_str()).collect();
    let mut places = line::places(&names, &vec![to.session(); seats.len()]);
    let (mut candidates, mut spare, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    for seat in seats {
        let Some(row) = leases.row(&seat.0, seat.1).filter(|row| row.session == Some(from)) else { continue };
        let declaration = if row.declared { declaration::of(&seat.0) } else { None };
        let declared = declaration.map(|known| (known.kind, known.slots));
        // Of a semaphore one permit is enough; and what is beyond its permits has come back when its holder is dead.
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
        // A partition has the successor for its target already.
        if declared.is_none_or(|(kind, _)| kind != Kind::Group) {
            ahead.push(resource);
        } else {
            call.seam().judge(&resource);
        }
    }
    Inheritance { leases: granted.len(), left, ahead }
}

/// Frees permits of semaphores that the successor may not have. Whether any is left.
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

/// What came of passing on what is left of dead sessions.
#[derive(Default)]
pub struct Inherited {
    /// Those that have successors who inherit: nothing of them goes to any other session.
    pub sessions: HashSet<Uuid>,
    pub leases: usize,
    /// Whether anything is left.
    pub left: bool,
}

/// Passes on what is left of dead sessions that have living successors, up to `most` leases of each.
pub fn inherit_from_dead(call: &Call, dead: &[Uuid], most: usize) -> Result<Inherited> {
    let (mut inherited, table) = (Inherited::default(), succession::table());
    // Mostly no session has been taken over.
    let dead = if table.has_entry(&[]) { dead } else { &[] };
    for (from, to) in dead.iter().filter_map(|from| Some((*from, succession::successor_in(&table, *from)?))) {
        inherited.left |= !adopt_graces(call, from, to);
        let Some(to) = call.living(to)? else { continue };
        if row(to.session()).is_none_or(|row| row.draining) {
            // It owns what it had when it began to drain, as a member.
            inherited.left |= !group::inherit(call, from, to.session());
            continue;
        }
        let seats = held(from, most);
        let join = || group::inherit(call, from, to.session());
        // Nothing keeps fenced transactions away here: each lease is tested for one that is open.
        let Inheritance { leases, left, .. } = inherit(call, from, to, seats, &|_| Some(false), join);
        inherited.sessions.insert(from);
        inherited.leases += leases;
        inherited.left |= left;
    }
    Ok(inherited)
}
