//! Fences: numbers that grow with every change of owner, and the check that holds at commit time.
//!
//! **Drawing.** A fence is `nextval` of one sequence. Before the first one in each start of shared memory the sequence
//! is raised to the seconds since 2025 and a minute, times 2^22. It never catches up with the clock
//! ([`crate::shmem::pace`]), so every incarnation of the server starts above what any older history of it can have
//! granted: after a crash with unflushed answers, a promotion of a lagging standby, a restored dump, snapshot or point
//! in time. The numbers of work items are raised with it, for the same reason.
//!
//! **Checking.** [`fence_check`] takes S(session) and F(fence) in share mode, to the end of the transaction and without
//! waiting, and only then reads the row and the session's slot. A transaction that takes the lease from a living
//! session holds F or S exclusively, from before it touches the row to its own end. A transaction that takes it from a
//! dead session tests F first, and no new check passes for a dead session. So while a transaction that has checked is
//! open no other session gets the lease, even past its deadline, and a check that comes later fails. No row is locked:
//! row locks in share mode would make a multixact for each transaction.
//!
//! A pass also needs the grant to be visible to what the caller reads: else its work would rest on data from before the
//! lease.

use super::declaration::{self, Kind};
use super::row::{LeaseRow, Leases};
use crate::base::error::{Error, Result};
use crate::call::{Call, Given, enter, text_arg};
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement};
use crate::pg::text::Text;
use crate::pg::{catalog, clock, transaction};
use crate::shmem::databases::Counter;
use crate::shmem::pace::Pace;
use crate::shmem::word::State;
use crate::{seam, session};
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;
use std::sync::atomic::Ordering;

static DRAWN: Statement = Statement::reads(include_str!("../../sql/query/fence/drawn.sql"), &[]);
static RAISE: Statement = Statement::writes(include_str!("../../sql/query/fence/raise.sql"), &[]);

/// Makes sure that the sequence, and that of items, is above all history. The guard is let go at once: it must not wait
/// for a user's transaction.
pub fn raise(call: &Call) {
    let sequence = catalog::fence_sequence().to_u32();
    let raised = || call.database.raised.load(Ordering::Acquire) == sequence;
    if !raised() {
        // Locked first, so that no transaction of another session is waited for under the guard.
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

/// The same though it has been done: an administrator may have set the sequences back, as a restore of data alone does.
pub fn raise_again(call: &Call) {
    call.database.raised.store(0, Ordering::Release);
    raise(call);
}

/// Returns a new fence, greater than all before.
pub fn next(call: &Call) -> i64 {
    let fence = spi::next(catalog::FENCES);
    hold_back(&call.database.fences, fence);
    fence
}

/// Waits until the clock has reached a number that has just been drawn.
pub fn hold_back(pace: &Pace, number: i64) {
    const LONGEST: u64 = 10_000;
    loop {
        let ahead = pace.ahead(number, clock::now());
        if ahead == 0 {
            return;
        }
        clock::pause(ahead.min(LONGEST));
        pgrx::check_for_interrupts!();
    }
}

/// Returns the last fence that has been drawn, or one after it.
pub fn drawn(call: &Call) -> i64 {
    call.db().one(&DRAWN, vec![], |row| row.long(1))
}

/// Keeps fenced transactions away from a fence, to the end of this transaction; waits for those that are open.
pub fn exclude(fences: impl IntoIterator<Item = i64>) {
    for fence in fences {
        Guard::Fence(fence).lock(Mode::Exclusive);
    }
}

/// What has become of a fence.
pub enum Fate {
    /// It is that of the lease, whose session may be dead.
    Current {
        session: Uuid,
        row: LeaseRow,
    },
    Released,
    /// The lease was taken from its session, which had expired.
    Expired,
    /// A newer fence has been granted; its row, where the resource has one slot.
    Superseded(Option<LeaseRow>),
    Unknown,
}

/// Returns what has become of a fence. `slot`: the slot of the fence, where it is known.
pub fn fate(resource: &str, slot: Option<i32>, fence: i64) -> Fate {
    let leases = Leases::open();
    let newer = slot.and_then(|slot| leases.row(resource, slot)).filter(|row| row.fence > fence);
    match (leases.by_fence(resource, fence), leases.row(resource, 0)) {
        (Some(row), _) => match row.session {
            Some(session) => Fate::Current { session, row },
            None if row.expired => Fate::Expired,
            None => Fate::Released,
        },
        (None, _) if newer.is_some() => Fate::Superseded(newer),
        (None, Some(newer)) if newer.fence > fence && !newer.declared => Fate::Superseded(Some(newer)),
        (None, _) if leases.has_newer(resource, fence) => Fate::Superseded(None),
        _ => Fate::Unknown,
    }
}

fn lost(call: &Call, resource: &str, slot: Option<i32>, fence: i64) -> ErrorReport {
    // Where the slot is known it is a partition. A caller whose fence is lost is told first if there is no partition of
    // that number.
    if let Some(none) = slot.and_then(|partition| declaration::require_partition(resource, partition).err()) {
        return none;
    }
    call.database.add(Counter::FencesLost, 1);
    let why = match fate(resource, slot, fence) {
        Fate::Current { row, .. } if slot.is_some_and(|slot| slot != row.slot) => {
            format!("It is the fence of partition {}.", row.slot)
        }
        Fate::Current { .. } | Fate::Expired => "Its session has ended.".to_owned(),
        Fate::Released => "The lease has been released.".to_owned(),
        Fate::Superseded(Some(newer)) => match newer.session.and_then(session::row) {
            Some(holder) => format!("The lease is held by \"{}\" under fence {}.", holder.consumer, newer.fence),
            None => format!("The last fence granted is {}.", newer.fence),
        },
        Fate::Superseded(None) => "A newer fence has been granted.".to_owned(),
        Fate::Unknown => return Error::FenceUnknown { resource: resource.to_owned(), fence }.into(),
    };
    Error::FenceLost { resource: resource.to_owned(), fence, why }.into()
}

thread_local! {
    /// The session of the fence that this backend checked last, which mostly is that of the next check too.
    static LAST: Cell<Option<(u32, i64, Uuid)>> = const { Cell::new(None) };
}

#[pg_extern(schema = "eskit_lease")]
fn fence_check(resource: Option<Text>, fence: Option<i64>) -> Result<()> {
    let shared = enter()?;
    let resource = text_arg("resource", resource)?;
    let fence = fence.given("fence")?;
    check(&Call::open(shared)?, &resource, None, fence)
}

/// Asserts, to the end of the transaction, that a lease is held under a fence. `slot`: which, where it is known.
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
        // From here on no other session can take the lease from this one: what is read now holds to the end of the
        // transaction.
        let row = find().ok_or_else(lost)?;
        let holder = row.session.ok_or_else(lost)?;
        if holder == session {
            break (row, at.ok_or_else(lost)?);
        }
        // Into grace or back: for fences both sessions are the same.
        session = holder;
        pgrx::check_for_interrupts!();
    };
    LAST.set(Some((call.home.table, fence, session)));
    // Ended by this transaction, which may have left rows of it to the worker.
    if seam::has_ended(at.session()) {
        return Err(lost());
    }
    // An earlier pass in this transaction still stands: no other session can have taken the lease since, whatever the
    // deadline.
    if call.seam().has_fenced(fence) {
        return Ok(());
    }
    // A bridge has one slot, and of partitions it is mostly known which.
    let kind = (row.declared && slot.is_none() && row.slot == 0).then(|| call.declarations().of(resource)).flatten();
    let kind = kind.map_or(Kind::Group, |known| known.kind);
    if row.declared {
        kind.rules().cross(resource, fence)?;
    }
    match call.shared.look(at).map(|standing| standing.state) {
        // Transactions that follow each other without a gap would keep a partition for ever.
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

/// Returns whether the grant is part of what the caller's statement reads.
fn visible(leases: &Leases, resource: &str, row: &LeaseRow) -> bool {
    let granted_by = row.made_by;
    if transaction::is_mine(granted_by) {
        if transaction::keeps_its_snapshot() {
            return false;
        }
    } else if transaction::precedes(granted_by, transaction::snapshot_xmin()) {
        // Committed before the oldest transaction that the snapshot leaves out: the common case, without a second look.
        return true;
    }
    // Into grace and back, the row changes under its fence.
    leases.is_seen(resource, row.slot, row.fence)
}
