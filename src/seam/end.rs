//! The callbacks that PostgreSQL calls when a transaction or a subtransaction ends. They apply the notes.
//!
//! After the end an ERROR in a callback would bring the server down. Before a commit, or a PREPARE, an ERROR is an
//! ordinary one.

use super::effect::Memory;
use super::notes::{NOTES, Notes, What, in_order, next_epoch};
use super::sessions::Revision;
use crate::base::error::Error;
use crate::pg::guard::{Guard, Mode};
use crate::pg::{statement, transaction};
use crate::shmem::confirm;
use crate::shmem::prepared::{HUNGRY, NONE};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, SubTransactionId};
use std::cell::Cell;
use std::collections::HashSet;

/// Registers the callbacks, for the life of this backend.
pub fn register() {
    thread_local! {
        static REGISTERED: Cell<bool> = const { Cell::new(false) };
    }
    if REGISTERED.replace(true) {
        return;
    }
    // SAFETY: the callbacks stay loaded
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
    }
}

thread_local! {
    /// Whether this connection has been warned of a check that protects nothing.
    static WARNED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this connection has been warned of a check that protects nothing.
pub fn has_warned() -> bool {
    WARNED.get()
}

/// Warns if this transaction is one statement that has checked a fence and written nothing. A second statement of a
/// pipeline begins later, so then there is no warning. This runs before the commit, where an ERROR is an ordinary one.
fn warn_of_check() {
    let alone = NOTES.with_borrow(|notes| notes.checked_alone.is_some_and(|began| began == statement::began_at()));
    if alone && !transaction::has_written() && !WARNED.replace(true) {
        ErrorReport::from(Error::CheckedAlone).report(pgrx::PgLogLevel::WARNING);
    }
}

/// Applies the notes that take effect before the end. Returns false for a PREPARE that a note does not allow.
fn before_end(event: pg_sys::XactEvent::Type) -> bool {
    NOTES.with_borrow_mut(|notes| {
        let Some(memory) = notes.memory else {
            return true;
        };
        let preparing = event == pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE;
        if preparing && !notes.list.iter().all(|note| note.what.effect().can_be_prepared()) {
            return false;
        }
        // SAFETY: in a transaction
        notes.xid = unsafe { pg_sys::GetTopTransactionIdIfAny() }.into_inner();
        notes.list.iter().for_each(|note| note.what.effect().before_end(&memory));
        true
    })
}

/// Does the acts that were put off until the commit, if this transaction may still write. The transaction ends soon, so
/// the locks of these acts do not block others for long.
fn act() {
    let acts = |notes: &mut Notes| {
        let taken = notes.list.extract_if(.., |note| matches!(note.what, What::AtCommit(_)));
        (notes.memory, taken.map(|note| note.what).collect::<Vec<_>>())
    };
    let (Some(memory), acts) = NOTES.with_borrow_mut(acts) else { return };
    // SAFETY: plain reads
    if acts.is_empty() || unsafe { pg_sys::XactReadOnly } {
        return;
    }
    // SAFETY: in a transaction, which has no active snapshot any more; an ERROR takes this snapshot away with the rest
    unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
    for what in acts {
        if let What::AtCommit(put_off) = what
            && let Err(error) = (put_off.act)(memory.shared, &put_off.name)
        {
            error.report(pgrx::PgLogLevel::ERROR);
        }
    }
    // SAFETY: as above
    unsafe { pg_sys::PopActiveSnapshot() };
}

/// Takes the locks that mark this transaction for as long as it is prepared, even after a restart. A restart gives
/// earlier sessions their TTL anew, but this transaction has found some of them dead. It also grants to some sessions,
/// at a time that cannot be foretold.
fn mark() {
    let marks = NOTES.with_borrow(|notes| {
        let mut marks: HashSet<Guard> = HashSet::new();
        notes.list.iter().for_each(|note| note.what.effect().before_prepare(&mut marks));
        marks
    });
    for mark in marks {
        mark.lock(Mode::Joint);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::*;
    next_epoch();
    if event == XACT_EVENT_PRE_COMMIT {
        warn_of_check();
        act();
    }
    match event {
        // Before a PREPARE an error is an ordinary one.
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE if !before_end(event) => {
            ErrorReport::from(Error::AttachPrepared).report(pgrx::PgLogLevel::ERROR);
        }
        XACT_EVENT_PRE_PREPARE => mark(),
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => NOTES.with_borrow_mut(|notes| {
            if let Some(memory) = notes.memory.take() {
                let must_look = match event {
                    XACT_EVENT_PREPARE => notes.hand_over(&memory),
                    _ => notes.settle(&memory, event == XACT_EVENT_COMMIT),
                };
                notes.clear();
                if must_look {
                    memory.shared.wake(memory.database);
                }
            }
        }),
        _ => (),
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    mine: SubTransactionId,
    parent: SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    next_epoch();
    NOTES.with_borrow_mut(|notes| {
        let Some(memory) = notes.memory else {
            return;
        };
        if notes.newest < mine {
            return;
        }
        match event {
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => notes.hand_up(mine, parent),
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                let taken = notes.take_back(mine);
                for note in in_order(&taken) {
                    note.at_abort(&memory);
                }
                if !taken.is_empty() {
                    memory.shared.wake(memory.database);
                }
            }
            _ => return,
        }
        // The subtransaction that has ended was the newest. All that are still open are older.
        notes.newest = parent;
    });
}

impl Notes {
    /// Applies the notes at PREPARE. The locks stay, and the worker watches for the end of the prepared transaction.
    /// Returns whether the worker must look.
    fn hand_over(&self, memory: &Memory) -> bool {
        self.list.iter().for_each(|note| note.what.effect().at_prepare(memory));
        if self.tally.is_empty() && self.list.iter().all(|note| matches!(note.what, What::News(_))) {
            return false;
        }
        let whom = if self.list.iter().any(|note| note.what.effect().may_feed()) { HUNGRY } else { NONE };
        let revised = self.each().map(|revision: &Revision| revision.session);
        let counts = (&self.tally.counted(), self.tally.free_since());
        memory.shared.watch_own(memory.database, self.xid, counts, revised, whom);
        true
    }

    /// Applies the notes when the transaction has ended, and its changes are visible or never will be. Returns whether
    /// the worker must look. Most transactions only pass the check of a living session's fence, and need no look.
    fn settle(&self, memory: &Memory, committed: bool) -> bool {
        // A session becomes unproven before it learns of its grant.
        if committed && confirm::committed_alone() {
            self.gainers().for_each(|session| memory.shared.unproven(session));
        }
        if committed {
            self.tally.commit(memory.database);
        }
        let mut must_look = false;
        for note in in_order(&self.list) {
            must_look |= if committed { note.at_commit(memory) } else { note.at_abort(memory) };
        }
        must_look
    }
}
