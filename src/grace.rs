//! Grace: a lease that its session has let go of lives on alone for a while.
//!
//! The lease leaves its session for a private one, which nobody keeps alive and which ends with the lease: its TTL is the grace. The
//! fence stays, so that the holder may finish under it, and nobody has to be kept away from it: open fenced transactions go on, and
//! for [`crate::fence`] both sessions are the same. Until the grace is over the holder may release the lease for good, or take it back
//! by acquiring it. Afterwards it lapses, though the session lives.

use crate::call::Call;
use crate::claim::{LeaseRow, Leases};
use crate::declaration::{self, Kind};
use crate::error::{Error, Result};
use crate::guard::{Guard, Mode};
use crate::liveness::clock;
use crate::liveness::slots::SlotRef;
use crate::release::find;
use crate::session::{self, New};
use crate::spi::{Statement, Value};
use crate::table::Locked;
use pgrx::Uuid;
use pgrx::pg_sys::{INT4OID, TEXTOID, UUIDOID};

static MOVE: Statement = Statement::writes(include_str!("../sql/query/lease/move.sql"), &[TEXTOID, INT4OID, UUIDOID]);

fn give_to(call: &Call, resource: &str, slot: i32, session: Uuid) {
    call.db().execute(&MOVE, vec![Value::Text(resource), Value::Int(slot), Value::Uuid(session)]);
}

/// Lets go of a lease with grace. Whether it was held.
pub fn give(call: &Call, resource: &str, fence: i64, grace_ms: i32) -> Result<bool> {
    let leases = Leases::open();
    let Some(row) = leases.by_fence(resource, fence) else { return Ok(false) };
    if row.declared && declaration::of(resource).is_some_and(|known| known.kind == Kind::Group) {
        return Err(Error::NoGrace { name: resource.to_owned() }.into());
    }
    let Some(row) = find(&leases, resource, row.slot, true, |row| row.fence == fence) else { return Ok(false) };
    let Some(at) = row.session.map(|session| call.living(session)).transpose()?.flatten() else { return Ok(false) };
    session::authorize(call.caller, call.shared.role(at), Some(resource))?;
    let Some(holder) = session::row(at.session()) else { return Ok(false) };
    if leases.lock(row.tid, true) != Locked::Mine {
        return Ok(false);
    }
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
    give_to(call, resource, row.slot, private.session());
    if holder.private && session::lock_row(holder.session).is_some() {
        session::end(call, at)?;
    }
    call.seam().revise(at);
    Ok(true)
}

/// Takes a lease back that is in grace of a session. False if somebody was faster, or the grace is over.
pub fn take_back(call: &Call, leases: &Leases, me: SlotRef, resource: &str, row: &LeaseRow) -> bool {
    let Some(private) = row.session.and_then(|session| call.shared.find(call.home, session)) else { return false };
    let mine = leases.lock(row.tid, false) == Locked::Mine && !session::lock_rows(vec![private.session()]).1;
    // Of a predecessor that was taken over: its guard is not this session's, so nothing may be fenced when the lease comes here.
    let guarded = call.fencer(private) == call.fencer(me) || Guard::Fence(row.fence).try_lock(Mode::Exclusive);
    if !mine || !guarded || !call.shared.look(private).is_some_and(|standing| standing.alive()) {
        return false;
    }
    give_to(call, resource, row.slot, me.session());
    session::delete(call.db(), &[private.session()]);
    call.seam().ended(private, true);
    call.seam().revise(me);
    true
}
