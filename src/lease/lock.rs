//! Locks: leases for callers without a session, in the manner of ShedLock. The lock gets a private session that lives
//! for the TTL and ends with the lease. The caller renews and releases the lock by name and fence. A caller that lost a
//! reply repeats its call with the same request: the same role, owner and request get the same fence.

use super::acquire::{acquire_one, can_look, can_take};
use super::answer::{Answer, LeaseAnswer};
use super::declaration::{self, Kind};
use super::row::{self, Leases, Probe};
use super::semaphore::{self, Glance};
use super::{line, names};
use crate::base::error::Result;
use crate::base::interval;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::keys;
use crate::pg::guard::{Guard, Mode};
use crate::pg::text::Text;
use crate::session::holders::{Holders, living_rows};
use crate::session::{self, New, SessionRow, Touch, touch_holder};
use crate::shmem::counters::Counter;
use pgrx::Uuid;
use pgrx::datum::Interval;
use pgrx::prelude::*;

/// What a look finds out about a name.
struct Seen {
    /// The living holders; of a semaphore at least those with the caller's request.
    holders: Vec<Uuid>,
    /// The answer to a caller who does not repeat a holder's request, if nothing is free.
    refusal: Option<Answer>,
    /// Whether the name is a semaphore or a bridge.
    declared: bool,
}

fn look(call: &Call, name: &str, request: Option<Uuid>) -> Result<std::result::Result<Seen, Answer>> {
    let busy = || Ok(Err(Answer::refused("busy")));
    let probe = Leases::open().glance(name, 0);
    let declaration = match probe {
        Probe::Row(row) | Probe::InFlight(Some(row)) if !row.declared => None,
        _ => declaration::of(name),
    };
    if let Some(declaration) = declaration {
        declaration::require_leasable(name, &declaration)?;
        // Two calls with the same request at the same time could otherwise get a permit each.
        let mine = |request| Guard::Seat(request, keys::fnv1a(name)).try_lock(Mode::Exclusive);
        if !request.is_none_or(mine) {
            return busy();
        }
        // The session that has a permit by this request is found without a count.
        if let Some(mut holders) = request.map_or_else(|| Some(Vec::new()), session::of_request) {
            holders.retain(|session| !row::of_session(name, *session).is_empty());
            match semaphore::glance(call, name, &declaration, None) {
                Glance::Free(_) => return Ok(Ok(Seen { holders, refusal: None, declared: true })),
                Glance::AllHeld => {
                    return Ok(Ok(Seen { holders, refusal: Some(Answer::refused("held")), declared: true }));
                }
                Glance::Unknown => (),
            }
        }
        let permits = semaphore::survey(call, name, &declaration, &|_| false);
        let holders = permits.held.iter().map(|(_, holder)| holder.session).collect();
        let refusal = match (declaration.kind, permits.held.first()) {
            (Kind::Bridge, Some((_, holder))) => Some(Answer::held_by(holder)),
            (Kind::Bridge, None) => Some(Answer::refused(if permits.in_flight { "busy" } else { "bridged" })),
            _ if permits.free.is_empty() && !permits.in_flight => {
                Some(Answer::refused(if permits.left.is_empty() { "held" } else { "awaited" }))
            }
            _ => None,
        };
        return Ok(Ok(Seen { holders, refusal, declared: true }));
    }
    let row = match probe {
        Probe::InFlight(_) => return busy(),
        Probe::Row(row) => row,
        Probe::Absent => return Ok(Ok(Seen { holders: Vec::new(), refusal: None, declared: false })),
    };
    let holder = Holders::of(call, row.session.into_iter()).living(row.session).cloned();
    if holder.is_none() && row.session.is_some() && !Guard::Fence(row.fence).is_free() {
        return busy();
    }
    Ok(Ok(Seen {
        refusal: holder.as_ref().map(Answer::held_by),
        holders: holder.map(|holder| holder.session).into_iter().collect(),
        declared: false,
    }))
}

#[pg_extern(schema = "eskit_lease")]
fn lock_acquire(
    name: Option<Text>,
    owner: Option<Text>,
    ttl: Option<Interval>,
    request: default!(Option<Uuid>, "NULL"),
) -> Result<LeaseAnswer> {
    let shared = enter_writing("lock_acquire()")?;
    let name = text_arg("name", name)?;
    let owner = text_arg("owner", owner)?;
    let ttl_ms = interval::ttl_ms(Some(ttl.given("ttl")?))?;
    let call = Call::open(shared)?;
    let one = |answer, trust_ms| Ok(LeaseAnswer::new(answer, trust_ms));
    let refused = |answer: Answer| {
        call.database.add(Counter::Refusals, 1);
        call.shared.refused(call.home, &name, &owner, answer.holder.as_deref(), answer.reason);
        one(answer, None)
    };
    if !can_look() {
        return refused(Answer::refused("busy"));
    }
    // A refusal on the look writes nothing: the call opens a session only if the lease looks free.
    let seen = match look(&call, &name, request)? {
        Ok(seen) => seen,
        Err(busy) => return refused(busy),
    };
    let is_asked_again = |holder: &SessionRow| {
        let theirs = (holder.request, holder.role, &holder.consumer);
        holder.private && theirs == (request, call.caller.to_u32(), &owner)
    };
    let holders = if request.is_some() { seen.holders } else { Vec::new() };
    if let Some(holder) = living_rows(&call, &holders).into_iter().find(is_asked_again) {
        let touch = touch_holder(shared, holder.session, Some(&name))?;
        if let Ok(me) = touch.acquirer() {
            let answer = acquire_one(&call, me, name, false)?;
            return one(answer, touch.trust_ms());
        }
    }
    if !seen.declared {
        names::require(&call, &name, None)?;
    }
    if let Some(refusal) = seen.refusal {
        return refused(refusal);
    }
    if !can_take() {
        return refused(Answer::refused("busy"));
    }
    if !line::first_in_line(&call, vec![&name]).first.is_empty() {
        return refused(Answer::refused("awaited"));
    }
    let me = session::open(&call, New { private: true, request, ..New::of(&call, &owner, ttl_ms) })?;
    let answer = acquire_one(&call, me, name, false)?;
    if !answer.is_granted() {
        session::delete(&call, &[me.session()]);
        call.seam().ended(me, true);
    }
    let touch = Touch::look(call.home, Some(me), shared.look(me));
    one(answer, touch.trust_ms())
}
