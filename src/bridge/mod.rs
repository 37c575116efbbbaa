//! Bridges: a resource whose holders and those of a user's advisory lock keep each other out, so that workers that hold the lock and
//! workers that hold the lease may run side by side while one replaces the other.
//!
//! An old worker works while it holds the lock exclusively. On the side of the lease the same lock is held in share mode, twice over:
//!
//! * **By the worker, for as long as the lease lives** (see [`tend`]). It alone gives the lease to others, and only while it has the
//!   lock. Whoever asks for a free one gets a place in line, or is told `bridged`; a release and a take-over leave it to the worker. So a lease is
//!   granted when no old worker works, and none begins while it is held.
//! * **By each fenced transaction, to its end** ([`cross`]). It is had before anything is judged, without waiting, or 55P03 is raised. So
//!   what is written under a fence and what is written under the lock never overlap, whatever becomes of the worker.
//!
//! The lease is a row and the lock a process's, so one may be without the other, and an old worker at work under a lease that lives:
//!
//! | what happens                | what becomes of the lock                         | what becomes of the lease                         |
//! |-----------------------------|--------------------------------------------------|---------------------------------------------------|
//! | its holder lets go, or dies | let go by the worker, unless somebody is in line | free                                              |
//! | the worker or the server ends | free, until another worker has it back: a moment | stays with its holder, who checks in vain (55P03) |
//! | an old worker was faster    | the old one's; the worker tries again and again  | the same                                          |
//! | an old worker waits for it  | let go by the worker: it is the old one's next   | the same                                          |
//! | the worker has it back      | the worker's                                     | stays with its holder, under a new fence          |
//! | a check is prepared         | kept by the prepared transaction too, to its end | stays with its holder                             |
//!
//! *Under a new fence*, because the old worker was an owner in between: what rests on data from before that must not be written. A check needs its
//! grant to be visible to what the caller reads (see [`crate::fence`]), and a fence that is granted anew says so. Until then none may pass, so the
//! worker has a guard of the name ([`Guard::Bridge`](crate::guard::Guard::Bridge)) from when the lease has a fence of its own time to when it lets go.
//! A check has the lock first and looks for the guard then: if it is there, the worker has had the lock since the grant, and the check has it from now on.
//!
//! *An old worker waits* is what `pg_advisory_lock` does where `pg_try_advisory_lock` would be refused. PostgreSQL lets nobody share a lock past
//! one who waits for it exclusively, so from then on no check can pass. If the worker kept the lock, neither side would get on. Therefore
//! whoever waits on the old side is next, in the middle of a lease too: it has the lock once the transactions that are fenced have
//! ended. Where several resources have one lock, all let go.

pub mod tend;

mod advisory;

use crate::call::{Call, enter, text_arg};
use crate::catalog;
use crate::declaration::{self, Kind};
use crate::error::{Error, Result};
use crate::spi::{self, Statement, Value};
use crate::table::{Key, Sight, Table};
use crate::text::Text;
use pgrx::pg_sys::{INT4OID, INT8OID, TEXTOID};
use pgrx::prelude::*;

static CREATE: Statement = Statement::writes(include_str!("../../sql/query/bridge/create.sql"), &[TEXTOID, INT8OID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/bridge/drop.sql"), &[TEXTOID]);
static PAGE: Statement = Statement::reads(include_str!("../../sql/query/bridge/page.sql"), &[TEXTOID, INT4OID]);

/// Bridges of one database. The worker may have two locks for each, and four while it takes them back; the lock table is for the whole server,
/// and has room for 6,400 where it is smallest by PostgreSQL's own settings.
pub const MAX_BRIDGES: usize = 250;

fn table() -> Table {
    Table::open(c"_bridges", c"_bridges_pkey")
}

/// Whether this database may have bridges; version 0.1.0 had none.
pub fn may_be() -> bool {
    catalog::relation(c"_bridges") != pg_sys::Oid::INVALID
}

/// The key of the lock that a bridge leads to.
fn key_of(resource: &str) -> Option<i64> {
    table().scan(Sight::Latest, &[Key::Text(resource)], |row, _| row.get(2))
}

fn is_full() -> bool {
    let (table, mut count) = (table(), 0);
    let mut enough = || {
        count += 1;
        (count == MAX_BRIDGES).then_some(())
    };
    table.entries(&[], MAX_BRIDGES) == MAX_BRIDGES && table.scan(Sight::Latest, &[], |_, _| enough()).is_some()
}

/// Holds the lock of a bridge to the end of the transaction; refused unless the worker has it as well, and has had since the grant.
pub fn cross(resource: &str) -> Result<()> {
    let Some(lock_key) = key_of(resource) else { return Ok(()) };
    let why = if !advisory::share(lock_key) {
        "Another process has it exclusively, or waits for that."
    } else if !advisory::is_open(resource) {
        "The worker of eskit_lease has not taken it, or is just taking it again."
    } else {
        return Ok(());
    };
    Err(Error::BridgeClosed { resource: resource.to_owned(), lock_key, why }.into())
}

/// The bridges, in order, page by page.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_create(resource: Option<Text>, lock_key: Option<i64>) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("bridge_create()")?;
    let resource = text_arg("resource", resource)?;
    let lock_key = lock_key.ok_or(Error::Null("lock_key"))?;
    let call = Call::open(shared)?;
    if is_full() {
        return Err(Error::BridgesFull.into());
    }
    declaration::declare(&call, &resource, Kind::Bridge, 1)?;
    call.db().execute(&CREATE, vec![Value::Text(&resource), Value::Long(lock_key)]);
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_drop(resource: Option<Text>) -> Result<bool> {
    let shared = enter()?;
    spi::require_writes("bridge_drop()")?;
    let resource = text_arg("resource", resource)?;
    let call = Call::open(shared)?;
    if declaration::of(&resource).is_none() {
        return Ok(false);
    }
    declaration::lock_owned(&call, &resource, Kind::Bridge)?;
    declaration::undeclare(&call, &resource, Kind::Bridge)?;
    call.db().execute(&DROP, vec![Value::Text(&resource)]);
    // The worker may still have the lock.
    call.seam().judge(&resource);
    Ok(true)
}
