//! Fences: numbers that grow with every change of owner, and the check that holds until commit.
//!
//! **Drawing.** A fence is `nextval` of one sequence. Before the first fence of each start of shared memory, the
//! sequence is raised to the seconds since 2025 plus a minute, times 2^22, unless it is higher already. Drawn fences
//! never catch up with the clock ([`crate::shmem::pace`]). So every incarnation of the server starts above all fences
//! that an older history of it can have granted. Histories differ after a crash before WAL was flushed, the promotion
//! of a lagging standby, or the restore of a dump, a snapshot or a point in time. The numbers of work items are raised
//! with the fences, for the same reason.
//!
//! **Checking.** [`fence_check`] takes S(session) and F(fence) in share mode, without waiting, to the end of the
//! transaction. Only then does it read the row and the session's slot. A transaction that gives a living session's
//! lease to another one holds F or S exclusively, from before it touches the row until it ends. A transaction that
//! takes it from a dead session tests F first, and no new check passes for a dead session. So while a transaction that
//! has passed a check is open, no other session gets the lease, even after the deadline. Once another session has the
//! lease, every check of the old fence fails. No row is locked: row locks in share mode would make a multixact for each
//! transaction.
//!
//! A check passes only if the caller's snapshot sees the grant. Otherwise the caller's work would rest on data from
//! before the lease.

use super::declaration::{self, Kind};
use super::fate::{Fate, Loss, fate};
use super::row::{LeaseRow, Leases};
use crate::base::error::{self, Error, Result};
use crate::call::{Call, Given, enter, text_arg};
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement};
use crate::pg::text::Text;
use crate::pg::{catalog, clock, statement, transaction};
use crate::shmem::counters::Counter;
use crate::shmem::pace::Pace;
use crate::shmem::word::State;
use crate::{seam, session};
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

static DRAWN: Statement = Statement::reads(include_str!("../../sql/query/fence/drawn.sql"), &[]);
static RAISE: Statement = Statement::writes(include_str!("../../sql/query/fence/raise.sql"), &[]);

/// Raises the sequences of fences and items above all history, once in each start of shared memory. The guard is
/// released at once: a call that holds it must not wait for a user's transaction.
pub fn raise(call: &Call) {
    let sequence = catalog::fence_sequence().to_u32();
    let raised = || call.database.raised.load(Ordering::Acquire) == sequence;
    if !raised() {
        // The sequences are locked first, so that no other transaction is waited for under the guard.
        [catalog::FENCES, c"_item_seq"].into_iter().for_each(catalog::lock);
        Guard::Raise.lock(Mode::Exclusive);
        if !raised() {
            for (fence, item) in call.db().run(&RAISE, vec![], |row| (row.long(1), row.long(2))) {
                call.database.fences.begin(fence, clock::now());
                call.database.items.begin(item, clock::now());
            }
            call.database.raised.store(sequence, Ordering::Release);
        }
        Guard::Raise.unlock(Mode::Exclusive);
    }
}

/// Raises the sequences again. An administrator may have set them back, as a restore of data alone does.
pub fn raise_again(call: &Call) {
    call.database.raised.store(0, Ordering::Release);
    raise(call);
}

/// Returns a new fence, greater than all before.
pub fn next(call: &Call) -> i64 {
    draw(call, catalog::FENCES, &call.database.fences)
}

/// Returns a number of a sequence, greater than all before. If the sequence was set back, it is raised first.
pub fn draw(call: &Call, sequence: &'static CStr, pace: &Pace) -> i64 {
    let mut number = spi::next(sequence);
    if pace.is_set_back(number).is_some() {
        raise_again(call);
        number = spi::next(sequence);
    }
    hold_back(call, pace, number);
    number
}

/// Waits until the clock has reached a number that this process has drawn. If the sequence was set back, raises the
/// sequence and then reports 40001: the next try gets a greater number.
pub fn hold_back(call: &Call, pace: &Pace, number: i64) {
    const LONGEST: u64 = 10_000;
    if let Some(greatest) = pace.is_set_back(number) {
        raise_again(call);
        error::raise(Error::SetBack { number, greatest });
    }
    loop {
        let ahead = pace.ahead(number, clock::now());
        if ahead == 0 {
            return;
        }
        clock::pause(ahead.min(LONGEST));
        pgrx::check_for_interrupts!();
    }
}

/// Returns the last fence that has been drawn, or a later one.
pub fn drawn(call: &Call) -> i64 {
    call.db().one(&DRAWN, vec![], |row| row.long(1))
}

/// Keeps new fenced transactions away from fences, to the end of this transaction. Waits for the fenced transactions
/// that are open.
pub fn exclude(fences: impl IntoIterator<Item = i64>) {
    for fence in fences {
        Guard::Fence(fence).lock(Mode::Exclusive);
    }
}

fn lost(call: &Call, resource: &str, slot: Option<i32>, fence: i64) -> ErrorReport {
    // A known slot is a partition. If the group has no such partition, the caller is told that instead of the lost
    // fence.
    if let Some(none) = slot.and_then(|partition| declaration::require_partition(resource, partition).err()) {
        return none;
    }
    call.database.add(Counter::FencesLost, 1);
    let why = match fate(call, resource, slot, fence) {
        Fate::Current { row, .. } if slot.is_some_and(|slot| slot != row.slot) => {
            format!("It is the fence of partition {}.", row.slot)
        }
        Fate::Current { .. } => Loss::Expired.to_string(),
        Fate::Lost(Loss::Unknown) => return Error::FenceUnknown { resource: resource.to_owned(), fence }.into(),
        Fate::Lost(loss) => loss.to_string(),
    };
    Error::FenceLost { resource: resource.to_owned(), fence, why }.into()
}

thread_local! {
    /// The session of the fence that this backend checked last: the next check usually has the same fence.
    static LAST: Cell<Option<(u32, i64, Uuid)>> = const { Cell::new(None) };
}

#[pg_extern(schema = "eskit_lease")]
fn fence_check(resource: Option<Text>, fence: Option<i64>) -> Result<()> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.given("fence")?;
    let call = Call::open(shared)?;
    check(&call, &resource, None, fence)?;
    let is_alone = || {
        statement::ends_with_answer()
            && statement::has_no_effect_but(&|called| catalog::is_function(called, c"fence_check"))
    };
    if !seam::has_warned() && is_alone() {
        call.seam().checked_alone();
    }
    Ok(())
}

/// Asserts, to the end of the transaction, that a lease is held under a fence. `slot` is the slot of the fence, if
/// known.
pub fn check(call: &Call, resource: &str, slot: Option<i32>, fence: i64) -> Result<()> {
    call.database.add(Counter::FenceChecks, 1);
    let leases = Leases::open();
    let find = || match slot {
        Some(slot) => leases.row(resource, slot).filter(|row| row.fence == fence),
        None => leases.by_fence(resource, fence),
    };
    let lost = || lost(call, resource, slot, fence);
    let in_flight = || ErrorReport::from(Error::InFlight { resource: resource.to_owned(), fence });
    let known = LAST.get().filter(|last| (last.0, last.1) == (call.home.table, fence)).map(|last| last.2);
    let mut session = known.or_else(|| find()?.session).ok_or_else(lost)?;
    let (row, at) = loop {
        let at = call.holder(session, Some(resource))?;
        let fencer = at.map_or(Guard::Fencer(session), |at| call.fencer(at));
        if !fencer.try_lock(Mode::Shared) || !Guard::Fence(fence).try_lock(Mode::Shared) {
            return Err(in_flight());
        }
        // From here on no other session can take the lease from this one. If what is read now passes, it holds to the
        // end of the transaction.
        let row = find().ok_or_else(lost)?;
        let holder = row.session.ok_or_else(lost)?;
        if holder == session {
            break (row, at.ok_or_else(lost)?);
        }
        // The lease has gone into grace or back. The former holder and the private session have the same guards, so the
        // check goes on with the present one.
        session = holder;
        pgrx::check_for_interrupts!();
    };
    LAST.set(Some((call.home.table, fence, session)));
    // This transaction may have ended the session and left some of its rows to the worker.
    if seam::has_ended(at.session()) {
        return Err(lost());
    }
    // An earlier check in this transaction still holds: whatever the deadline, no other session can have taken the
    // lease since.
    if call.seam().has_fenced(fence) {
        return Ok(());
    }
    // Only slot 0 can be a bridge's. For a partition the caller usually knows the slot.
    let kind = (row.declared && slot.is_none() && row.slot == 0).then(|| call.declarations().of(resource)).flatten();
    let kind = kind.map_or(Kind::Group, |known| known.kind);
    if row.declared {
        kind.rules().cross(resource, fence)?;
    }
    match session::ending::outcome(call.shared, at) {
        // An overdue owner must not begin new work. Otherwise transactions without a gap would keep the partition
        // forever.
        Some(State::Alive) if row.declared && kind.rules().is_overdue(call, resource, row.slot, fence) => {
            return Err(Error::Overdue { group: resource.to_owned(), partition: row.slot, fence }.into());
        }
        Some(State::Alive) => (),
        Some(State::Frozen) => return Err(in_flight()),
        _ => return Err(lost()),
    }
    if !visible(&leases, resource, &row) {
        return Err(Error::NewerThanSnapshot { resource: resource.to_owned(), fence }.into());
    }
    call.seam().fenced(resource, row.slot, fence, at);
    Ok(())
}

/// Returns whether the caller's statement sees the grant.
fn visible(leases: &Leases, resource: &str, row: &LeaseRow) -> bool {
    let granted_by = row.made_by;
    if transaction::is_mine(granted_by) {
        if transaction::keeps_its_snapshot() {
            return false;
        }
    } else if transaction::precedes(granted_by, transaction::snapshot_xmin()) {
        // The granting transaction ended before the snapshot was taken. This is the common case, and needs no scan.
        return true;
    }
    // The row also changes under the same fence, when the lease goes into grace and back.
    leases.is_seen(resource, row.slot, row.fence)
}
