//! Bridges: a resource whose holders and the workers of an older kind exclude each other. So workers that hold the old
//! lock and workers that hold the lease may run side by side while one kind replaces the other. There are two old
//! kinds:
//!
//! * [`advisory`]: a worker holds an advisory lock of one bigint, as `pg_advisory_lock` and its like take it.
//! * [`row`]: a worker owns a row until some time, as two of its columns say.
//!
//! The following describes the advisory lock. A row differs in two ways: it is not lost when our worker ends, and no
//! process can be seen to wait for it.
//!
//! An old worker works while it holds the lock exclusively. On the side of the lease the same lock is held in share
//! mode, twice:
//!
//! * **By our database worker, for as long as the lease lives** (see [`tend`]). Only this worker gives the lease to a
//!   new holder, and only while it has the lock. A session that asks for a free lease gets a place in line, or is told
//!   `bridged`. A release and a take-over leave the lease to the worker. So a lease is granted only when no old worker
//!   works, and no old worker begins while the lease is held.
//! * **By each fenced transaction, to its end** ([`cross`]). A check takes the lock before it judges anything, without
//!   waiting, or raises 55P03. So writes under a fence and writes under the lock never overlap, whatever becomes of our
//!   worker.
//!
//! The lease is a row, and the lock belongs to a process, so one may exist without the other. Then an old worker may be
//! at work while the lease lives:
//!
//! | what happens                | what becomes of the lock                         | what becomes of the lease                         |
//! |-----------------------------|--------------------------------------------------|---------------------------------------------------|
//! | the lease's holder releases it, or dies | our worker releases it, unless a session is in line | free                                       |
//! | our worker or the server ends | free for a moment, until another worker takes it | stays with its holder, whose checks fail (55P03) |
//! | an old worker gets the lock first | the old worker's; ours retries                | stays with its holder, whose checks fail (55P03)  |
//! | an old worker waits for the lock | our worker releases it; the old one is next | stays with its holder, whose checks fail (55P03)  |
//! | our worker gets the lock back | our worker's                                     | stays with its holder, under a new fence          |
//! | a check is prepared         | also kept by the prepared transaction, to its end | stays with its holder                            |
//!
//! The *new fence* is needed because the old worker was an owner in between: a write must not rest on data from before
//! that time. A check passes only if the caller sees its grant (see [`crate::lease::fence`]), and the new fence is a
//! new grant. Until then no check may pass. So the worker holds a guard of the name
//! ([`Guard::Bridge`](crate::pg::guard::Guard::Bridge)) from the time when the lease has its new fence until it
//! releases the lock. A check takes the lock first, then looks for the guard. If the guard is held, the worker has had
//! the lock since the grant, and from now on the check also has it.
//!
//! *An old worker waits* if it calls `pg_advisory_lock` where `pg_try_advisory_lock` would be refused. PostgreSQL
//! grants no process a lock in share mode while another waits for it exclusively, so from then on no check can pass. If
//! our worker kept the lock, neither side would get on. So a waiting old worker is next, even in the middle of a lease:
//! it gets the lock once the fenced transactions have ended. If several resources have one lock, our worker releases it
//! for all of them.
//!
//! Files, low to high: target, side, advisory, row, tend, mod, verbs.

pub mod tend;

mod advisory;
mod row;
mod side;
mod target;
mod verbs;

pub use side::may_be;

use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::lease::kind::Rules;
use crate::pg::spi::{Statement, Value};
use pgrx::pg_sys::{INT4OID, TEXTOID};
use side::{Closed, Side};

static PAGE: Statement = Statement::reads(include_str!("../../sql/query/bridge/page.sql"), &[TEXTOID, INT4OID]);

/// The rules of names that are bridges.
pub struct OfBridges;

impl Rules for OfBridges {
    fn cross(&self, resource: &str, fence: i64) -> Result<()> {
        cross(resource, fence)
    }

    fn may_grant(&self, resource: &str) -> bool {
        tend::may_grant(resource)
    }
}

/// Holds the other side of a bridge, to the end of the transaction. Refuses unless the worker has held it since the
/// grant.
fn cross(resource: &str, fence: i64) -> Result<()> {
    let Some(side) = Side::of(resource) else { return Ok(()) };
    let (to, crossed) = match &side {
        Side::Lock(key) => (format!("advisory lock {key}"), advisory::cross(resource, *key)),
        Side::Row(target) => (target.told(), row::cross(resource, fence, target)),
    };
    let closed = |Closed { why, hint }| Error::BridgeClosed { resource: resource.to_owned(), to, why, hint };
    crossed.map_err(|refused| closed(refused).into())
}

/// Returns a page of the names of bridges, in order, after a name.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}
