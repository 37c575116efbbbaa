//! Grace: a lease that its session has let go of lives on alone for a while.
//!
//! The lease leaves its session for a private one, which no heartbeat extends and which ends with the lease: its TTL is
//! the grace. The fence stays, so that the holder may finish under it. No transaction must be kept away from it: open
//! fenced transactions go on, and for [`crate::lease::fence`] both sessions are the same. Until the grace is over the
//! holder may release the lease for good, or take it back by acquiring it. Afterwards the lease lapses, though the
//! session lives.
//!
//! A session that takes over from the one that let go may acquire the lease too, before all who are in line, and gets a
//! new fence: the process of before may still work under the old one. As the private session lives, a check of the old
//! fence could begin at any time; so the successor holds F of it from before the grant to the end of its transaction,
//! and ends the private session with the grant. It is told `busy` while a transaction under the old fence is open. The
//! private session says by `grace_of` which session may acquire the lease, and by `fencer` which one let go. A release
//! with grace that crosses the take-over names the predecessor: there the succession says who it is now
//! ([`crate::ending::takeover`]). Told `busy`, it waits at the head of the queue, and is woken when that transaction
//! has ended ([`tell`]).
//!
//! After a promotion the session that let go gets a new fence in the same way, as of any lease that it holds.

use super::declaration::{self, Kind};
use super::line;
use super::row::{self, LeaseRow, Leases};
use super::seat::is_only_permit;
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::Locked;
use crate::session::holders::{Holder, Holders};
use crate::session::{self, New, SessionRow, succession};
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::pg_sys::{INT4OID, TEXTOID, UUIDOID};

static MOVE: Statement =
    Statement::writes(include_str!("../../sql/query/lease/move.sql"), &[TEXTOID, INT4OID, UUIDOID]);

/// Gives a lease, whose row is locked, to another session.
fn give_to(call: &Call, resource: &str, row: &LeaseRow, session: Uuid) {
    let given = Leases::open().pass_on(resource, row.slot, row.tid, session);
    call.written(given, &MOVE, vec![Value::Text(resource), Value::Int(row.slot), Value::Uuid(session)]);
}

/// Lets go of a lease with grace. Whether it was held.
pub fn give(call: &Call, resource: &str, fence: i64, grace_ms: i32) -> Result<bool> {
    let leases = Leases::open();
    let Some(row) = leases.by_fence(resource, fence) else { return Ok(false) };
    if row.declared && declaration::of(resource).is_some_and(|known| known.kind == Kind::Group) {
        return Err(Error::NoGrace.into());
    }
    let Some(row) = leases.find(resource, row.slot, true, |row| row.fence == fence) else { return Ok(false) };
    let Some(at) = row.session.map(|session| call.living(session)).transpose()?.flatten() else { return Ok(false) };
    let Some(role) = call.shared.role(at) else { return Ok(false) };
    session::authorize(call.caller, role, Some(resource))?;
    let Some(holder) = session::row(at.session()) else { return Ok(false) };
    if leases.lock(row.tid, true) != Locked::Mine {
        return Ok(false);
    }
    // Read again: a take-over may have been at it, which has another session acquire the lease.
    let locked = if holder.private { session::lock_row(holder.session) } else { Some(holder) };
    let Some(holder) = locked else { return Ok(false) };
    line::leave_behind(call, at.session(), std::iter::once(resource));
    // Grace upon grace, or for a lock: the private session of before makes room, and the guard stays.
    let grace_of = if holder.private { holder.grace_of } else { Some(holder.session) };
    let alone = New {
        role: holder.role,
        private: true,
        request: holder.request,
        grace_of,
        fencer: holder.fencer.or(Some(holder.session)),
        ..New::of(call, &holder.consumer, grace_ms)
    };
    let private = session::open(call, alone)?;
    call.shared.cap(private, clock::now() + u64::from(grace_ms.cast_unsigned()) * 1_000);
    give_to(call, resource, &row, private.session());
    if holder.private {
        end_without_lease(call, &holder, at);
    }
    call.seam().revise(at);
    Ok(true)
}

/// Returns the private session of a lease in grace.
fn private(call: &Call, row: &LeaseRow) -> Option<SlotRef> {
    call.living(row.session?).ok().flatten()
}

/// Locks the row of the private session, without waiting. False if that fails, or the grace is over.
fn lock(call: &Call, private: SlotRef) -> bool {
    !session::lock_rows(vec![private.session()]).1 && call.shared.look(private).is_some_and(|standing| standing.alive())
}

/// Ends a private session that has let go of its one lease, with this transaction. Since this start it was refused all
/// else; what one of a former start may have got from the library of then, the worker takes away.
pub fn end_without_lease(call: &Call, private: &SessionRow, at: SlotRef) {
    // While another transaction grants to the session, this one does not see what it is given. The worker takes that
    // away, too.
    let alone = Guard::Grantee(private.session).try_lock(Mode::Exclusive);
    session::delete(call, &[private.session]);
    let is_of_this_start = private.boot_id == call.shared.boot_id();
    let gone = alone && is_of_this_start && row::held_by(&[private.session], 1, 0).is_empty();
    call.seam().ended(at, gone);
}

fn end_private(call: &Call, private: SlotRef) {
    session::delete(call, &[private.session()]);
    call.seam().ended(private, true);
}

/// Gives a lease in grace back to the session that let go of it, under its fence. False if another call was faster, if
/// the grace is over, or if the session has another permit meanwhile.
pub fn take_back(call: &Call, leases: &Leases, me: SlotRef, resource: &str, row: &LeaseRow) -> bool {
    let Some(private) = private(call, row) else { return false };
    // Another connection of the session may be getting a permit for it at this moment.
    if row.declared && !is_only_permit(call, resource, row.slot, me.session()) {
        return false;
    }
    if leases.lock(row.tid, false) != Locked::Mine || !lock(call, private) {
        return false;
    }
    give_to(call, resource, row, me.session());
    end_private(call, private);
    call.seam().revise(me);
    true
}

/// Keeps the fence of a lease in grace from new checks, and its private session as it is, for a grant to come. False
/// while a fenced transaction is open, while another call has the lease in hand, or when the grace is over.
pub fn reserve(call: &Call, row: &LeaseRow) -> bool {
    if !Guard::Fence(row.fence).try_lock(Mode::Exclusive) {
        return false;
    }
    let reserved = private(call, row).is_some_and(|private| lock(call, private));
    if !reserved {
        leave(row);
    }
    reserved
}

/// Lets checks of the fence pass again: the lease was not granted.
pub fn leave(row: &LeaseRow) {
    Guard::Fence(row.fence).unlock(Mode::Exclusive);
}

/// Wakes those who wait for what is in grace and may acquire it, of resources that are waited for and held; as no
/// fenced transaction is open any more. The resources for which one still is.
pub fn tell(call: &Call, held: &[(String, LeaseRow)]) -> Vec<String> {
    let (holders, mut busy) = (Holders::of(call, held.iter().filter_map(|(_, row)| row.session)), Vec::new());
    for (resource, row) in held {
        let Some(next) = holders.living(row.session).and_then(|holder| holder.grace_of) else { continue };
        if !line::has_place(resource, next) {
            continue;
        }
        if !Guard::Fence(row.fence).is_free() {
            busy.push(resource.clone());
        } else if let Ok(Some(at)) = call.living(next) {
            call.seam().revise(at);
        }
    }
    busy
}

/// Ends the private session of a lease that has been granted to another session.
pub fn end(call: &Call, row: &LeaseRow) {
    if let Some(private) = private(call, row) {
        end_private(call, private);
    }
}

/// Puts a session at the head of the queue of what its predecessor has let go of with grace: it has that before all who
/// are in line. False for any other resource.
pub fn waits_ahead(call: &Call, resource: &str, session: Uuid) -> bool {
    // Mostly nothing is in grace.
    if !succession::graces().has_entry(&[]) {
        return false;
    }
    let rows = Leases::open().rows(resource);
    let holders = Holders::of(call, rows.iter().filter_map(|row| row.session));
    let is_left = |holder: &Holder| holder.grace_of == Some(session) && holder.fencer != Some(session);
    let ahead = rows.iter().any(|row| holders.living(row.session).is_some_and(is_left));
    if ahead {
        line::take_first_place(call, resource, session);
    }
    ahead
}
