//! Grace: a lease that its session has released stays reserved for that session for a while.
//!
//! The lease moves from its session to a private one. No heartbeat extends the private session, which ends with the
//! lease; its TTL is the grace. The fence stays, so that the former holder may finish under it. Open fenced
//! transactions go on: for [`crate::lease::fence`] both sessions have the same guard. Until the grace is over, the
//! former holder may release the lease for good, or take it back by acquiring it. When the grace is over, the lease
//! lapses, even if the session lives.
//!
//! If another session takes over the former holder, this successor may acquire the lease, ahead of all sessions in
//! line. The successor gets a new fence, because the process of the former session may still work under the old one.
//! The private session lives, so a check of the old fence could begin at any time. So the successor holds F of that
//! fence from before the grant to the end of its transaction. The grant ends the private session. While a transaction
//! under the old fence is open, the successor is told `busy`. The successor then waits at the head of the line, and is
//! woken when that transaction has ended ([`tell`]).
//!
//! The private session's `grace_of` names the session that may acquire the lease, and `fencer` the session that
//! released it. If a release with grace crosses the take-over, `grace_of` names the predecessor. The succession then
//! tells who may acquire the lease ([`crate::ending::takeover`]).
//!
//! After a promotion or restore, a former holder that acquires the lease gets a new fence in the same way.

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

/// Moves a lease to another session. The caller has locked the row of the lease.
fn give_to(call: &Call, resource: &str, row: &LeaseRow, session: Uuid) {
    let given = Leases::open().pass_on(resource, row.slot, row.tid, session);
    call.written(given, &MOVE, vec![Value::Text(resource), Value::Int(row.slot), Value::Uuid(session)]);
}

/// Releases a lease with grace. Returns whether this call has released it.
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
    // A take-over may have changed which session may acquire the lease, so the private session's row is locked and read
    // again.
    let locked = if holder.private { session::lock_row(holder.session) } else { Some(holder) };
    let Some(holder) = locked else { return Ok(false) };
    line::leave_behind(call, at.session(), std::iter::once(resource));
    // If the holder is private, from an earlier grace or a lock, a new private session replaces it. `fencer` stays the
    // same.
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

/// Locks the row of the private session, without waiting. Returns false if the row is locked or gone, or the grace is
/// over.
fn lock(call: &Call, private: SlotRef) -> bool {
    !session::lock_rows(vec![private.session()]).1 && call.shared.look(private).is_some_and(|standing| standing.alive())
}

/// Ends a private session that has released its one lease; the end takes effect with this transaction's commit. A
/// private session of this start of shared memory was refused everything else. One of a former start may have got more
/// from an older library; the worker takes that away.
pub fn end_without_lease(call: &Call, private: &SessionRow, at: SlotRef) {
    // If another transaction is granting to the session, this one does not see the grant. The worker also takes that
    // lease away.
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

/// Gives a lease in grace back to the session that released it, under the same fence. Returns false if the row or the
/// private session is locked or changed, the grace is over, or the session has got another permit meanwhile.
pub fn take_back(call: &Call, leases: &Leases, me: SlotRef, resource: &str, row: &LeaseRow) -> bool {
    let Some(private) = private(call, row) else { return false };
    // Another connection of the session may be getting another permit at this moment.
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

/// Reserves a lease in grace for a grant: keeps new checks away from its fence, and locks its private session. Returns
/// false if a fenced transaction is open, another call has locked the session, or the grace is over.
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

/// Undoes [`reserve`]: the lease was not granted, and checks of its fence may pass again.
pub fn leave(row: &LeaseRow) {
    Guard::Fence(row.fence).unlock(Mode::Exclusive);
}

/// Wakes each waiter that may acquire a lease in grace, unless a fenced transaction is open under the lease's fence.
/// `held`: the resources that have waiters and a living holder. Returns the resources for which a fenced transaction is
/// still open.
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

/// Puts a session at the head of the line if its predecessor has released the resource with grace: the session gets it
/// before all others in line. Returns whether that is so.
pub fn waits_ahead(call: &Call, resource: &str, session: Uuid) -> bool {
    // Usually nothing is in grace.
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
