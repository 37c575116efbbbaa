//! Bridges: a resource whose holders and the workers of an older kind keep each other out, so that workers that hold
//! the lock of the old kind and workers that hold the lease may run side by side while one replaces the other. There
//! are two old kinds:
//!
//! * [`advisory`]: who works holds an advisory lock of one bigint, as `pg_advisory_lock` and its like take it.
//! * [`row`]: who works is the owner of a row until some time, as two of its columns say.
//!
//! What follows is told of the advisory lock. A row differs in two ways: it is not lost with the worker, and no process
//! is seen to wait for it.
//!
//! An old worker works while it holds the lock exclusively. On the side of the lease the same lock is held in share
//! mode, twice over:
//!
//! * **By the worker, for as long as the lease lives** (see [`tend`]). It alone gives the lease to others, and only
//!   while it has the lock. A session that asks for a free one gets a place in line, or is told `bridged`. A release
//!   and a take-over leave it to the worker. So a lease is granted when no old worker works, and none begins while it
//!   is held.
//! * **By each fenced transaction, to its end** ([`cross`]). It is had before anything is judged, without waiting, or
//!   55P03 is raised. So what is written under a fence and what is written under the lock never overlap, whatever
//!   becomes of the worker.
//!
//! The lease is a row and the lock a process's, so one may be without the other, and an old worker at work under a
//! lease that lives:
//!
//! | what happens                | what becomes of the lock                         | what becomes of the lease                         |
//! |-----------------------------|--------------------------------------------------|---------------------------------------------------|
//! | its holder lets go, or dies | let go by the worker, unless a session is in line | free                                              |
//! | the worker or the server ends | free, until another worker has it back: a moment | stays with its holder, who checks in vain (55P03) |
//! | an old worker was faster    | the old one's; the worker tries again and again  | the same                                          |
//! | an old worker waits for it  | let go by the worker: it is the old one's next   | the same                                          |
//! | the worker has it back      | the worker's                                     | stays with its holder, under a new fence          |
//! | a check is prepared         | kept by the prepared transaction too, to its end | stays with its holder                             |
//!
//! *Under a new fence*, because the old worker was an owner in between: what rests on data from before that must not be
//! written. A check needs its grant to be visible to what the caller reads (see [`crate::lease::fence`]), and a fence
//! that is granted anew says so. Until then none may pass, so the worker has a guard of the name
//! ([`Guard::Bridge`](crate::pg::guard::Guard::Bridge)) from when the lease has a fence of its own time to when it lets
//! go. A check has the lock first and looks for the guard then: if it is there, the worker has had the lock since the
//! grant, and the check has it from now on.
//!
//! *An old worker waits* is what `pg_advisory_lock` does where `pg_try_advisory_lock` would be refused. PostgreSQL lets
//! no process share a lock past one that waits for it exclusively, so from then on no check can pass. If the worker
//! kept the lock, neither side would get on. Therefore a process that waits on the old side is next, in the middle of a
//! lease too: it has the lock once the fenced transactions have ended. Where several resources have one lock, all let
//! go.
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

/// Holds what a bridge leads to, to the end of the transaction; refused unless the worker has had it since the grant.
fn cross(resource: &str, fence: i64) -> Result<()> {
    let Some(side) = Side::of(resource) else { return Ok(()) };
    let (to, crossed) = match &side {
        Side::Lock(key) => (format!("advisory lock {key}"), advisory::cross(resource, *key)),
        Side::Row(target) => (target.told(), row::cross(resource, fence, target)),
    };
    let closed = |Closed { why, hint }| Error::BridgeClosed { resource: resource.to_owned(), to, why, hint };
    crossed.map_err(|refused| closed(refused).into())
}

/// The bridges, in order, page by page.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}
