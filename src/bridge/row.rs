//! A bridge to a row by which workers lease: its owner column names the owner, until the time in the other column is
//! over.
//!
//! An old worker owns the row by an UPDATE that finds it free, or its own. The worker owns it by a **marker** in the
//! owner column: `eskit_lease:<resource>:<since>`. `since` is a number of the sequence of fences, drawn while the
//! worker has the row locked that was free (no owner, no time, or a time that is over), and written before it lets go.
//! To own the row is to change its owner. So:
//!
//! * **While a marker stands no old worker has owned the row since its number was drawn**, whatever has become of our
//!   worker, of the server and of the time in the row. Nothing has to be remembered.
//! * **A fence above that number was granted after it was drawn**, and so when the row was the worker's already. A
//!   fence below it is of before another owner's time, or may be: the lease goes on under a new one.
//!
//! A check ([`cross`]) locks the row in share mode, to the end of the transaction, and then wants a marker with a
//! number below its fence. No old worker owns the row before that transaction has ended, though the time in the row may
//! be over: to own it is to update it.
//!
//! Keeping the row ([`keep`]) moves the time and no more, so it is rare. Leaving it ends the time. A row whose time is
//! over while its marker stands goes to the first that takes it, and is the worker's until then.
//!
//! Nothing waits here for a process that has the row or the table locked. A check is the exception: it may meet the
//! worker moving the time, which takes a moment.

use super::side::Closed;
use super::target::{Opened, Target};
use crate::base::limits;
use crate::call::Call;
use crate::lease::fence;
use crate::pg::table::user::Shut;
use crate::pg::{clock, savepoint};
use pgrx::pg_sys;

/// Of a number in a marker.
const MAX_DIGITS: usize = 19;

/// What became of a try to have a row.
pub enum Taken {
    /// It is the worker's, since this number was drawn.
    Ours(i64),
    /// It is another owner's, for so long.
    Theirs(u64),
    /// Another transaction has it locked.
    Busy,
    Failed(String),
}

fn prefix(resource: &str) -> String {
    format!("eskit_lease:{resource}:")
}

/// Whom the owner column is to name.
fn marker(resource: &str, since: i64) -> String {
    format!("{}{since}", prefix(resource))
}

/// Since when the row is the worker's, by its owner.
fn since(resource: &str, owner: &str) -> Option<i64> {
    let number = owner.strip_prefix(&prefix(resource))?;
    // As it was written, and not otherwise: no sign, no zeros before it.
    number.parse().ok().filter(|since| *since > 0 && marker(resource, *since) == owner)
}

/// How many characters the owner column must have room for.
pub fn marker_length(resource: &str) -> usize {
    prefix(resource).chars().count() + MAX_DIGITS
}

/// Takes the row if it is free, and keeps it if it is ours.
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
        // Another process may have the row locked for a while. It stays ours meanwhile. If its time is over, only a
        // later look tells.
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

/// Writes the row that was found, if it is fit, and no other transaction has locked or changed it since. `owner`: the
/// new one, if any, asked for under the lock.
fn write(call: &Call, row: &Opened, owner: impl FnOnce() -> Option<String>, until: i64) -> Result<bool, Shut> {
    row.require_fit(call)?;
    if !row.try_lock() {
        return Ok(false);
    }
    row.write(owner().as_deref(), until).map(|()| true)
}

/// Ends our time, so that the other side may have the row at once. Whether to try again: what cannot be done ends by
/// itself, with its time.
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

/// Has what fails leave the transaction, and so the leases of others, as they are.
fn settle(call: &Call, target: &Target, work: impl FnOnce() -> Result<Taken, Shut>) -> Taken {
    call.db(); // connected before the savepoint
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

/// Holds the row to the end of the transaction, if it has been ours since before the fence was granted. If not: why.
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
