//! A bridge to a row that workers lease: one column names the owner, until the time in another column.
//!
//! An old worker owns the row by an UPDATE that finds it free, or its own. Our worker owns it by a **marker** in the
//! owner column: `eskit_lease:<resource>:<since>`. `since` is a number from the sequence of fences. The worker draws it
//! while it has the free row locked, and writes it before it releases that lock. A row is free if it has no owner, no
//! time, or a time that is over. Each new owner must change the owner column. So:
//!
//! * **While a marker stands, no old worker has owned the row since the marker's number was drawn.** Our worker and the
//!   server may have ended since, and the time in the row may be over. Nothing needs to be remembered.
//! * **A fence above that number was granted after it was drawn**, so the row was our worker's by then. A fence below
//!   that number may be older than another owner's time, so the lease goes on under a new fence.
//!
//! A check ([`cross`]) requires a marker whose number is below its fence, and locks that version of the row in share
//! mode, to the end of the transaction. Until the transaction ends no old worker owns the row, even if the row's time
//! is over: an old worker must update the row to own it, and the lock prevents that.
//!
//! Keeping the row ([`keep`]) only moves its time, and is rare. Leaving the row ends its time. A row whose time is over
//! but whose marker stands is our worker's until another owner takes it.
//!
//! No function here waits for a process that has the row or the table locked, except a check. A check may meet our
//! worker moving the time, which takes a moment.

use super::side::Closed;
use super::target::{Opened, Target};
use crate::base::limits;
use crate::call::Call;
use crate::lease::fence;
use crate::pg::table::user::Shut;
use crate::pg::{clock, savepoint};
use pgrx::pg_sys;

/// The most digits of a number in a marker.
const MAX_DIGITS: usize = 19;

/// The result of a try to own the row.
pub enum Taken {
    /// Our worker owns the row, since this number was drawn.
    Ours(i64),
    /// Another owner has the row, for this many microseconds.
    Theirs(u64),
    /// Another transaction has the row or the table locked.
    Busy,
    Failed(String),
}

fn prefix(resource: &str) -> String {
    format!("eskit_lease:{resource}:")
}

/// Returns the marker that the owner column must contain.
fn marker(resource: &str, since: i64) -> String {
    format!("{}{since}", prefix(resource))
}

/// Returns the number of the marker in the owner column; `None` if the owner is another.
fn since(resource: &str, owner: &str) -> Option<i64> {
    let number = owner.strip_prefix(&prefix(resource))?;
    // The number must read exactly as it was written: without a sign or leading zeros.
    number.parse().ok().filter(|since| *since > 0 && marker(resource, *since) == owner)
}

/// Returns the number of characters for which the owner column must have room.
pub fn marker_length(resource: &str) -> usize {
    prefix(resource).chars().count() + MAX_DIGITS
}

/// Takes the row if it is free, and keeps it if our worker owns it.
pub fn keep(call: &Call, resource: &str, target: &Target) -> Taken {
    fence::raise(call);
    settle(call, target, || try_keep(call, resource, target))
}

fn try_keep(call: &Call, resource: &str, target: &Target) -> Result<Taken, Shut> {
    let row = target.open(pg_sys::RowExclusiveLock)?;
    let found = row.find()?.ok_or_else(no_row)?;
    let (now, owner) = (clock::timestamp(), found.owner.as_deref());
    let left = found.until.map_or(0, |until| until.saturating_sub(now));
    if let Some(since) = owner.and_then(|owner| since(resource, owner)) {
        if since > fence::drawn(call) {
            return Err(Shut::Unfit("Its owner column has a number that nobody has drawn.".to_owned()));
        }
        // Another process may have the row locked for a while; the row stays ours meanwhile. If the row's time is over,
        // a later look tells whether it is still ours.
        let kept = left >= limits::RENEW_ROW || write(call, &row, || None, now + limits::KEEP_ROW)? || left > 0;
        return Ok(if kept { Taken::Ours(since) } else { Taken::Busy });
    }
    if owner.is_some() && left > 0 {
        return Ok(Taken::Theirs(left.cast_unsigned()));
    }
    row.require_room(marker_length(resource))?;
    let mut since = 0;
    let draw = || {
        since = fence::next(call);
        Some(marker(resource, since))
    };
    Ok(if write(call, &row, draw, now + limits::KEEP_ROW)? { Taken::Ours(since) } else { Taken::Busy })
}

/// Writes the row that was found, if it is fit and no other transaction has locked or changed it since. `owner` is
/// called under the lock, and returns the new owner if the owner changes.
fn write(call: &Call, row: &Opened, owner: impl FnOnce() -> Option<String>, until: i64) -> Result<bool, Shut> {
    row.require_fit(call)?;
    if !row.try_lock() {
        return Ok(false);
    }
    row.write(owner().as_deref(), until).map(|()| true)
}

/// Ends our worker's time in the row, so that the other side may take the row at once. Returns whether to try again. A
/// row that cannot be written now becomes free when its time is over.
pub fn leave(call: &Call, resource: &str, target: &Target) -> bool {
    let try_leave = || {
        let row = target.open(pg_sys::RowExclusiveLock)?;
        let found = row.find()?.ok_or_else(no_row)?;
        let (now, ours) = (clock::timestamp(), found.owner.is_some_and(|owner| since(resource, &owner).is_some()));
        let left = !ours || found.until.is_none_or(|until| until <= now) || write(call, &row, || None, now)?;
        Ok(if left { Taken::Theirs(0) } else { Taken::Busy })
    };
    matches!(settle(call, target, try_leave), Taken::Busy)
}

fn no_row() -> Shut {
    Shut::Unfit("It has no such row.".to_owned())
}

/// Does work in a savepoint, so that a failure leaves this transaction, and the leases of other names, as they are.
fn settle(call: &Call, target: &Target, work: impl FnOnce() -> Result<Taken, Shut>) -> Taken {
    call.db(); // connects before the savepoint
    match savepoint::attempt(work) {
        Ok(Ok(taken)) => taken,
        Ok(Err(Shut::Busy)) => Taken::Busy,
        Ok(Err(shut)) => Taken::Failed(format!("{} cannot be kept. {}", target.told(), told(shut))),
        Err(message) => Taken::Failed(format!("{} cannot be kept: {message}", target.told())),
    }
}

fn told(shut: Shut) -> String {
    match shut {
        Shut::Busy => "Another process has the table, or its key, locked.".to_owned(),
        Shut::NoColumn(column) => format!("It has no column \"{column}\"."),
        Shut::Unfit(why) | Shut::Unplain(why) | Shut::Narrow(why) => why,
    }
}

/// Holds the row to the end of the transaction, if our worker has owned it since before the fence was granted.
/// Otherwise returns why not.
pub fn cross(resource: &str, fence: i64, target: &Target) -> Result<(), Closed> {
    let row = match target.open(pg_sys::RowShareLock) {
        Ok(row) => row,
        Err(Shut::Busy) => return Err(passing(&told(Shut::Busy))),
        Err(shut) => return Err(lasting(told(shut))),
    };
    for _ in 0..limits::ROW_TRIES {
        let Ok(Some(found)) = row.find() else { return Err(lasting(told(no_row()))) };
        match found.owner.and_then(|owner| since(resource, &owner)) {
            None => return Err(passing("The worker of eskit_lease does not own it, as its owner column says.")),
            Some(since) if since > fence => {
                return Err(passing("Another worker has owned it since the fence was granted, or may have."));
            }
            Some(_) if row.try_share() => return Ok(()),
            Some(_) => (),
        }
        pgrx::check_for_interrupts!();
        clock::pause(limits::ROW_PAUSE);
    }
    Err(passing("Another transaction has it locked."))
}

fn passing(why: &str) -> Closed {
    Closed {
        why: why.to_owned(),
        hint: "Roll back and ask again: the lease may have a new fence by then. The row names its owner.",
    }
}

fn lasting(why: String) -> Closed {
    Closed { why, hint: "This does not pass by itself: mend the table, or drop the bridge." }
}

#[cfg(test)]
mod tests {
    use super::{marker, marker_length, since};

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        for resource in ["r", "sub:orders", "eskit_lease:r:", "r:1", "ä"] {
            assert_eq!(since(resource, &marker(resource, 17)), Some(17));
            assert_eq!(marker(resource, i64::MAX).chars().count(), marker_length(resource));
        }
    }

    #[test]
    fn others_are_no_markers() {
        for owner in [
            "",
            "old-1",
            "eskit_lease:r",
            "eskit_lease:r:",
            "eskit_lease:s:17",
            "eskit_lease:r:17 ",
            "eskit_lease:r:-17",
        ] {
            assert_eq!(since("r", owner), None, "{owner}");
        }
        for owner in [
            "eskit_lease:r:+17",
            "eskit_lease:r:017",
            "eskit_lease:r:0",
            "eskit_lease:r:1:17",
            "eskit_lease:r:99999999999999999999",
        ] {
            assert_eq!(since("r", owner), None, "{owner}");
        }
        assert_eq!(since("r:1", "eskit_lease:r:1"), None);
    }
}
