//! Fences: numbers that grow with every change of owner, and the check that holds at commit time.
//!
//! **Drawing.** A fence is `nextval` of one sequence. Before the first one in each start of shared memory the sequence is raised to
//! the seconds since 2025 and a minute, times 2^22. It never catches up with the clock, so every incarnation of the server starts
//! above what any older history of it can have granted: after a crash with unflushed answers, a promotion of a lagging standby, a
//! restored dump, snapshot or point in time.
//!
//! **Checking.** [`fence_check`] takes S(session) and F(fence) in share mode, to the end of the transaction and without waiting, and only
//! then reads the row and the session's slot. Whoever takes the lease from a living session holds F or S exclusively, from before
//! it touches the row to its own end; whoever takes it from a dead one tests F first, and no new check passes for a dead
//! session. So while a transaction that has checked is open nobody gets the lease, even past its deadline, and a check that comes
//! later fails. No row is locked: row locks in share mode would make a multixact for each transaction.
//!
//! A pass also needs the grant to be visible to what the caller reads: else its work would rest on data from before the lease.

use crate::call::{Call, enter, text_arg};
use crate::error::{Error, Result};
use crate::guard::{Guard, Mode};
use crate::liveness::databases::Counter;
use crate::liveness::word::State;
use crate::spi::{self, Statement, Value};
use crate::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::{self, INT8OID, TEXTOID, TransactionId};
use pgrx::prelude::*;
use std::cell::Cell;
use std::sync::atomic::Ordering;

static RAISE: Statement = Statement::writes(include_str!("../sql/query/fence/raise.sql"), &[]);
static READ: Statement = Statement::reads(include_str!("../sql/query/fence/read.sql"), &[TEXTOID]);
static VISIBLE: Statement = Statement::reads(include_str!("../sql/query/fence/visible.sql"), &[TEXTOID, INT8OID]);

/// Makes sure that the sequence is above all history. The guard is let go at once: it must not wait for a user's transaction.
pub fn raise(call: &Call) {
    let sequence = spi::fence_sequence().to_u32();
    let raised = || call.database.raised.load(Ordering::Acquire) == sequence;
    if !raised() {
        Guard::Raise.lock(Mode::Exclusive);
        if !raised() {
            call.db().execute(&RAISE, vec![]);
            call.database.raised.store(sequence, Ordering::Release);
        }
        Guard::Raise.unlock(Mode::Exclusive);
    }
}

/// Keeps fenced transactions away from a fence, to the end of this transaction; waits for those that are open.
pub fn exclude(fences: impl IntoIterator<Item = i64>) {
    for fence in fences {
        Guard::Fence(fence).lock(Mode::Exclusive);
    }
}

/// What the row of a lease says.
struct Current {
    session: Option<Uuid>,
    fence: i64,
    xmin: TransactionId,
    consumer: Option<String>,
    /// Whether it was taken from a session that had expired.
    expired: bool,
}

fn read(call: &Call, resource: &str) -> Option<Current> {
    let current = call.db().run(&READ, vec![Value::Text(resource)], |row| Current {
        session: row.get(1),
        fence: row.long(2),
        xmin: row.get(3).unwrap_or(pg_sys::InvalidTransactionId),
        consumer: row.get::<Text>(4).map(|text| text.0),
        expired: row.get(5).unwrap_or(false),
    });
    current.into_iter().next()
}

fn lost(call: &Call, resource: &str, fence: i64, current: Option<Current>) -> Error {
    call.database.add(Counter::FencesLost, 1);
    let why = match current {
        Some(Current { fence: newer, consumer: Some(consumer), .. }) if newer > fence => {
            format!("The lease is held by \"{consumer}\" under fence {newer}.")
        }
        Some(Current { fence: newer, .. }) if newer > fence => {
            format!("The last fence granted is {newer}.")
        }
        Some(Current { fence: same, session: None, expired: false, .. }) if same == fence => {
            "The lease has been released.".to_owned()
        }
        Some(Current { fence: same, .. }) if same == fence => "Its session has ended.".to_owned(),
        _ => "No such fence has been granted.".to_owned(),
    };
    Error::FenceLost { resource: resource.to_owned(), fence, why }
}

thread_local! {
    /// The session of the fence that this backend checked last: a fence belongs to one session for ever.
    static LAST: Cell<Option<(u32, i64, Uuid)>> = const { Cell::new(None) };
}

#[pg_extern(schema = "eskit_lease")]
fn fence_check(resource: Option<Text>, fence: Option<i64>) -> Result<()> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.ok_or(Error::Null("fence"))?;
    let call = Call::open(shared)?;
    call.database.add(Counter::FenceChecks, 1);
    let known = LAST.get().filter(|last| (last.0, last.1) == (call.home.table, fence)).map(|last| last.2);
    let session = match known {
        Some(session) => session,
        None => match read(&call, &resource) {
            Some(Current { session: Some(session), fence: current, .. }) if current == fence => session,
            other => return Err(lost(&call, &resource, fence, other).into()),
        },
    };
    let Some(at) = call.session(session)? else {
        return Err(lost(&call, &resource, fence, read(&call, &resource)).into());
    };
    LAST.set(Some((call.home.table, fence, session)));
    let in_flight = || Error::InFlight { resource: resource.clone(), fence };
    if !Guard::Fencer(session).try_lock(Mode::Shared) || !Guard::Fence(fence).try_lock(Mode::Shared) {
        return Err(in_flight().into());
    }
    // From here on nobody can take the lease: what is read now holds to the end of the transaction.
    let current = match read(&call, &resource) {
        Some(current) if current.fence == fence && current.session == Some(session) => current,
        other => return Err(lost(&call, &resource, fence, other).into()),
    };
    // A pass of before, in this transaction, still stands: nobody can have taken the lease since, whatever the deadline.
    let passed = call.seam().has_fenced(fence);
    match shared.look(at).map(|standing| standing.state) {
        _ if passed => (),
        Some(State::Alive) => (),
        Some(State::Frozen) => return Err(in_flight().into()),
        _ => return Err(lost(&call, &resource, fence, Some(current)).into()),
    }
    if !visible(&call, &resource, fence, current.xmin) {
        return Err(Error::NewerThanSnapshot { resource, fence }.into());
    }
    if !passed {
        call.seam().fenced(&resource, fence, at);
    }
    Ok(())
}

/// Whether the grant is part of what the caller's statement reads.
fn visible(call: &Call, resource: &str, fence: i64, granted_by: TransactionId) -> bool {
    // SAFETY: plain reads, in a function that a statement has called
    unsafe {
        if pg_sys::TransactionIdIsCurrentTransactionId(granted_by) {
            if pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 {
                return false;
            }
        } else if pg_sys::TransactionIdPrecedes(granted_by, (*pg_sys::GetActiveSnapshot()).xmin) {
            // Committed before the oldest transaction that the snapshot leaves out: the common case, without a second look.
            return true;
        }
    }
    !call.db().run_as_caller(&VISIBLE, vec![Value::Text(resource), Value::Long(fence)], |_| ()).is_empty()
}
