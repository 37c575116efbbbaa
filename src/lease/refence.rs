//! Fences granted before a promotion or a restore: their holders keep what they hold, but need a new fence.
//!
//! A promoted or restored server may have lost the end of its history. Fences that were granted in the lost part exceed
//! those in the rows, and an outside system may have seen them. A holder of an older fence goes on under it until the
//! holder asks again. Then `lease_renew` says `refence`, `lease_acquire` gives the new fence, and groups grant their
//! partitions anew. Two things tell which rows are older than the promotion or restore:
//!
//! * **A promotion** begins a timeline, and each row has the timeline of its grant.
//! * **A mark** in a private sequence: fences below it are older. Setting the mark takes effect at once, waits for
//!   nothing and changes no row.
//!
//! A base backup that is started without recovery.signal begins no timeline. Its `backup_label` shows such a start:
//! that file still exists when the postmaster makes shared memory. Then the mark of each database is set by the worker,
//! or by the first call that needs the mark and may write. A base backup that becomes a standby and is promoted before
//! its next start is marked too, although the timeline alone would tell. A start from a storage snapshot looks like a
//! start after a crash; there an administrator must set the mark ([`lease_refence_all`]).
//!
//! A database that gives up its entry in shared memory is marked again when it has one. No holder needs a second new
//! fence then: a database gives up its entry only while none of its sessions has a slot (see
//! [`crate::shmem::entries`]).

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

/// Returns the timeline of new fences.
pub fn timeline() -> i32 {
    server::timeline()
}

/// Returns whether the fence of a row is of the present history.
pub fn is_current(call: &Call, row: &LeaseRow) -> bool {
    row.timeline == timeline() && row.fence >= mark(call)
}

/// Returns the mark. If the database must still be marked and this transaction may not write, returns a mark above all
/// fences.
fn mark(call: &Call) -> i64 {
    let mark = || call.database.refence.load(Ordering::Acquire);
    if mark() != 0 {
        return mark();
    }
    if !call.shared.is_restored() {
        let kept = if has_mark() { call.db().one(&MARK, vec![], |row| row.long(1)) } else { 0 };
        // 1 means that no mark was set, because 0 means that the mark is not known yet.
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

/// Returns whether the database has the sequence of the mark. Versions up to 0.2.0 have none; there a mark is kept only
/// until the next restart.
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

/// Sets the mark in a restored database that has none yet. The worker calls this when it looks into a database after a
/// start. Each grant calls it too: otherwise its fence could be below a mark that is set later.
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
