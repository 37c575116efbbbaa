//! Locks: a lease without a session of one's own, as ShedLock's users know it. The owner gets a private session that lives for the TTL
//! and ends with the lease; it is renewed and released by name and fence. A reply that was lost is had again by asking with the same
//! request: the same role, owner and request get the same fence.

use crate::acquire::{Answer, acquire};
use crate::call::{Call, enter, text_arg};
use crate::claim::{Leases, Probe};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::holders::Holders;
use crate::interval;
use crate::lease::{acquirer, columns};
use crate::liveness::databases::Counter;
use crate::queue;
use crate::session::{self, New, touch};
use crate::spi;
use crate::text::Text;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use pgrx::{Uuid, name};

#[pg_extern(schema = "eskit_lease")]
fn lock_acquire(
    name: Option<Text>,
    owner: Option<Text>,
    ttl: Option<Interval>,
    request: default!(Option<Uuid>, "NULL"),
) -> Result<
    TableIterator<
        'static,
        (
            name!(granted, bool),
            name!(fence, Option<i64>),
            name!(slot, Option<i32>),
            name!(holder, Option<Text>),
            name!(trust_ms, Option<i32>),
            name!(reason, Text),
        ),
    >,
> {
    let shared = enter()?;
    spi::require_writes("lock_acquire()")?;
    let name = text_arg("name", name)?;
    let owner = text_arg("owner", owner)?;
    let ttl_ms = interval::ttl_ms(Some(ttl.ok_or(Error::Null("ttl"))?))?;
    let call = Call::open(shared)?;
    let one = |answer, trust_ms| Ok(TableIterator::once(columns(answer, trust_ms)));
    let refused = |answer| {
        call.database.add(Counter::Refusals, 1);
        one(answer, None)
    };
    // A refusal is to cost nothing, so a session is opened only when the lease is to be had, as far as can be seen.
    match Leases::open().glance(&name, 0) {
        // Of a semaphore there may be other permits.
        Probe::Row(row) | Probe::InFlight(Some(row)) if row.declared => (),
        Probe::InFlight(_) => return refused(Answer::refused("busy")),
        Probe::Row(row) => {
            if let Some((holder, _)) = Holders::of(&call, row.session.into_iter()).living(row.session) {
                let asked_again = holder.private
                    && request.is_some()
                    && (holder.request, holder.role, &holder.consumer) == (request, call.caller.to_u32(), &owner);
                let touch = if asked_again { Some(touch(shared, holder.session)?) } else { None };
                if let Some(Ok(me)) = touch.as_ref().map(acquirer) {
                    let answer = acquire(&call, me, &[name], false)?.pop().unwrap_or_default();
                    return one(answer, touch.and_then(|touch| touch.trust_ms()));
                }
                return refused(Answer { holder: Some(holder.consumer.clone()), ..Answer::refused("held") });
            }
            if row.session.is_some() && !Guard::Fence(row.fence).is_free() {
                call.seam().judge(&name);
                return refused(Answer::refused("busy"));
            }
        }
        Probe::Absent => (),
    }
    if !queue::first_in_line(&call, vec![&name], &[]).is_empty() {
        return refused(Answer::refused("awaited"));
    }
    let me = session::open(&call, New { private: true, request, ..New::of(&call, &owner, ttl_ms) })?;
    let answer = acquire(&call, me, &[name], false)?.pop().unwrap_or_default();
    if !answer.is_granted() {
        session::delete(call.db(), &[me.session()]);
        call.seam().ended(me, true);
    }
    one(answer, Some(ttl_ms))
}
