//! Which fences are of before: their holders still have what they hold, but need a new fence.
//!
//! A former history of this server may have given fences above those that its rows show, and an outside system may have
//! seen them. A holder from before goes on under its old fence until it asks again: `lease_renew` says `refence`,
//! `lease_acquire` gives the new fence, and partitions are given out anew. Two things tell which rows are of before:
//!
//! * **A promotion** begins a timeline, and each row has that of its grant.
//! * **A mark**, in a private sequence: fences below it are of before. A sequence is changed at once and without
//!   waiting, and no row is touched.
//!
//! A base backup that is started without recovery.signal begins no timeline. It is known by its `backup_label`, which
//! is still there when the postmaster makes shared memory: in such a start the first look into a database sets the
//! mark, that of a grant or of the worker at the latest. So it is where a base backup becomes a standby that is
//! promoted before its next start, though the timeline would tell all there. A storage snapshot is told from a crash by
//! nothing; there an administrator sets the mark ([`lease_refence_all`]).
//!
//! A database that gives up its entry in shared memory is marked again when it has one. No holder is told twice by
//! that: it gives up its entry only while it has no session there (see [`crate::shmem::places`]).

use super::fence;
use super::row::LeaseRow;
use crate::base::error::Result;
use crate::call::{Call, enter_writing};
use crate::pg::catalog;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::{server, transaction};
use crate::shmem::databases::RESCAN;
use pgrx::pg_sys::{self, INT8OID};
use pgrx::prelude::*;
use std::sync::atomic::Ordering;

static MARK: Statement = Statement::reads("SELECT last_value FROM eskit_lease._refence", &[]);
static SET: Statement = Statement::writes("SELECT setval('eskit_lease._refence', $1)", &[INT8OID]);

/// Returns the timeline that new fences belong to.
pub fn timeline() -> i32 {
    server::timeline()
}

/// Returns whether the fence of a row is of this history.
pub fn is_current(call: &Call, row: &LeaseRow) -> bool {
    row.timeline == timeline() && row.fence >= mark(call)
}

/// Returns the fence below which all are of before; in a database that is yet to be marked, and that this transaction
/// may not write, all are.
fn mark(call: &Call) -> i64 {
    let mark = || call.database.refence.load(Ordering::Acquire);
    if mark() != 0 {
        return mark();
    }
    if !call.shared.is_restored() {
        let kept = if has_mark() { call.db().one(&MARK, vec![], |row| row.long(1)) } else { 0 };
        // 1 where no mark was set, as 0 says that it is not known yet.
        call.database.refence.fetch_max(kept.max(1), Ordering::AcqRel);
        return mark();
    }
    if transaction::is_read_only() {
        return i64::MAX;
    }
    fence::raise(call);
    Guard::Raise.lock(Mode::Exclusive);
    if mark() == 0 {
        set(call);
    }
    Guard::Raise.unlock(Mode::Exclusive);
    mark()
}

/// Databases of versions up to 0.2.0 have none: there a restore is known until the next restart.
fn has_mark() -> bool {
    catalog::relation(c"_refence") != pg_sys::Oid::INVALID
}

fn set(call: &Call) {
    let fence = fence::next(call);
    if has_mark() {
        call.db().execute(&SET, vec![Value::Long(fence)]);
        spi::durably();
    }
    call.database.refence.fetch_max(fence, Ordering::AcqRel);
}

/// Sets the mark where it is not set yet. The worker does so when it looks into a database after a start. A grant that
/// comes sooner does it first: else its fence would be below the mark.
pub fn see_to_mark(call: &Call) {
    mark(call);
}

#[pg_extern(schema = "eskit_lease")]
fn lease_refence_all() -> Result<i64> {
    let shared = enter_writing("lease_refence_all()")?;
    let call = Call::open(shared)?;
    fence::raise_again(&call);
    set(&call);
    let first = mark(&call);
    pgrx::log!("eskit_lease: all holders get new fences, from {first} on");
    call.database.flag(RESCAN);
    shared.wake(call.database);
    Ok(first)
}
