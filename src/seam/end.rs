//! What becomes of the notes when their transaction, or subtransaction, ends.
//!
//! The callbacks run where an ERROR would bring the server down, so they only copy, change atomics and set latches; but before a commit, or a
//! prepare, an ERROR is an ordinary one.

use super::notes::{NOTES, Note, Notes, What, next_epoch};
use crate::error::Error;
use crate::guard::{Guard, Mode};
use crate::liveness::databases::{Database, Kept, RESCAN};
use crate::liveness::hunger::Food;
use crate::liveness::slots::SlotRef;
use crate::liveness::{Shared, clock, confirm};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, SubTransactionId};
use std::collections::HashSet;

/// Has the callbacks called, from now on and for the life of this backend.
pub fn register() {
    // SAFETY: the callbacks stay loaded
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
    }
}

/// Whether the transaction being prepared has attached a session.
fn before_end(event: pg_sys::XactEvent::Type) -> bool {
    NOTES.with_borrow_mut(|notes| {
        let Some((shared, _)) = notes.shared else {
            return false;
        };
        let preparing = event == pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE;
        if preparing && notes.list.iter().any(|note| matches!(note.what, What::Attached)) {
            return true;
        }
        // SAFETY: in a transaction
        notes.xid = unsafe { pg_sys::GetTopTransactionIdIfAny() }.into_inner();
        for note in &notes.list {
            if let What::Ended { session, .. } = note.what {
                shared.freeze(session);
            }
        }
        false
    })
}

/// Does what was put off until the commit, where it may still write: nobody waits for the end of this transaction for long any more.
fn act() {
    let acts = |notes: &mut Notes| {
        let shared = notes.shared.map(|(shared, _)| shared);
        let taken = notes.list.extract_if(.., |note| matches!(note.what, What::AtCommit { .. }));
        (shared, taken.map(|note| note.what).collect::<Vec<_>>())
    };
    let (Some(shared), acts) = NOTES.with_borrow_mut(acts) else { return };
    // SAFETY: plain reads
    if acts.is_empty() || unsafe { pg_sys::XactReadOnly } {
        return;
    }
    // SAFETY: in a transaction, which has no snapshot that is active any more; an ERROR takes it away with the rest
    unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
    for what in acts {
        if let What::AtCommit { name, act } = what
            && let Err(error) = act(shared, &name)
        {
            error.report(pgrx::PgLogLevel::ERROR);
        }
    }
    // SAFETY: as above
    unsafe { pg_sys::PopActiveSnapshot() };
}

/// What is to be known of this transaction for as long as it is prepared, also after a restart. That gives sessions of before it their time to
/// live anew, but this transaction has found some dead; and it grants to some at a time that nobody can tell.
fn mark() {
    let marks = NOTES.with_borrow(|notes| {
        let mut marks: HashSet<Guard> = notes.gainers().map(|session| Guard::Promised(session.session())).collect();
        for note in &notes.list {
            if let What::TakenFrom(sessions) = &note.what {
                marks.extend(sessions.iter().map(|session| Guard::Taken(*session)));
            }
        }
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
        act();
    }
    match event {
        // Before a prepare an error is an ordinary one.
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE if before_end(event) => {
            ErrorReport::from(Error::AttachPrepared).report(pgrx::PgLogLevel::ERROR);
        }
        XACT_EVENT_PRE_PREPARE => mark(),
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => NOTES.with_borrow_mut(|notes| {
            if let Some((shared, database)) = notes.shared.take() {
                let stirred = match event {
                    XACT_EVENT_PREPARE => {
                        notes.list.iter().for_each(|note| note.prepare(shared, database));
                        notes.gainers().for_each(|session| shared.unproven_while_prepared(session));
                        shared.watch_prepared(database, notes.xid);
                        true
                    }
                    _ => notes.settle(shared, database, event == XACT_EVENT_COMMIT),
                };
                notes.resources = 0;
                notes.passes = 0;
                notes.given_away = 0;
                notes.lanes = 0;
                notes.newest = 0;
                notes.list.clear();
                if stirred {
                    shared.wake(database);
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
        let Some((shared, database)) = notes.shared else {
            return;
        };
        if notes.newest < mine {
            return;
        }
        match event {
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => notes.hand_up(mine, parent),
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                let taken = notes.take_back(mine);
                in_order(&taken).for_each(|note| note.undo(shared, database));
                if !taken.is_empty() {
                    shared.wake(database);
                }
            }
            _ => return,
        }
        // Those that are open now are before it, and it was the last.
        notes.newest = parent;
    });
}

/// Some notes; who lives is settled, and floors are lowered, before anybody is told to look at what they wait for.
fn in_order(notes: &[Note]) -> impl Iterator<Item = &Note> {
    let those = |first: bool| notes.iter().filter(move |note| note.is_first() == first);
    those(true).chain(those(false))
}

impl Notes {
    fn opened(&self, session: SlotRef) -> bool {
        self.list.iter().any(|note| matches!(note.what, What::Opened(opened) if opened == session))
    }

    /// The sessions that may have been granted something.
    fn gainers(&self) -> impl Iterator<Item = SlotRef> {
        self.list.iter().filter_map(|note| match note.what {
            What::Opened(session) | What::Revision(session) => Some(session),
            _ => None,
        })
    }

    /// The transaction has ended, and what it did is visible, or never will be. Whether the worker is to look: not for a transaction that
    /// was fenced by the living and did nothing else, as most are.
    fn settle(&self, shared: &'static Shared, database: &'static Database, committed: bool) -> bool {
        // Before anybody hears of what has been granted.
        if committed && confirm::committed_alone() {
            self.gainers().for_each(|session| shared.unproven(session));
        }
        let mut stirred = false;
        for note in in_order(&self.list) {
            match &note.what {
                What::Fenced { name, session, .. } => {
                    stirred |= post_if_left(shared, database, name, *session);
                    continue;
                }
                What::Places { claimed, .. } if *claimed == committed => continue,
                What::EndedHeads(_) | What::TakenFrom(_) => continue,
                What::Due { queue, at } => {
                    if committed {
                        shared.feed_at(database, *queue, *at);
                    }
                    continue;
                }
                What::Places { .. } | What::AllPlaces => {
                    note.lower(shared, database);
                    note.feed(shared, database);
                    continue;
                }
                What::Items { queue, name, food } => {
                    if committed && shared.feed(database, *queue, *food) {
                        shared.post_items(database, name);
                        stirred = true;
                    }
                    continue;
                }
                What::InVain { name } => {
                    stirred |= !self.worker && shared.post_in_vain(database, name, clock::now());
                    continue;
                }
                What::Kept(kind) => {
                    stirred |= committed && database.keep(*kind, clock::now());
                    continue;
                }
                // There is nothing to be done before its deadline, for which somebody is woken already.
                What::Opened(session) if committed && shared.look(*session).is_some_and(|now| now.alive()) => continue,
                What::Revision(session) if committed => {
                    shared.bump(*session);
                    continue;
                }
                // Nothing is left of it.
                What::Ended { session, gone: true } if committed => {
                    if self.opened(*session) {
                        shared.erase(*session)
                    } else {
                        shared.end(*session, true)
                    }
                    continue;
                }
                _ => (),
            }
            stirred = true;
            if !committed {
                note.undo(shared, database);
                continue;
            }
            match &note.what {
                What::Resource { .. } if self.worker => (),
                What::Resource { name, changed } => shared.post(database, name, *changed),
                What::Later { name, at } => shared.post_at(database, name, *at),
                What::Many => database.flag(RESCAN),
                What::Ended { session, .. } => shared.end(*session, false),
                // Its time has passed while its transaction was open, so that it may have been swept before it had a row.
                What::Opened(_) => database.flag(RESCAN),
                What::Attached
                | What::Revision(_)
                | What::InVain { .. }
                | What::Flags(_)
                | What::Judged { .. }
                | What::Told(_)
                | What::Fenced { .. }
                | What::Places { .. }
                | What::AllPlaces
                | What::EndedHeads(_)
                | What::Due { .. }
                | What::Kept(_)
                | What::Retired
                | What::TakenFrom(_)
                | What::Items { .. }
                | What::AtCommit { .. } => (),
            }
        }
        stirred
    }
}

impl Note {
    fn is_first(&self) -> bool {
        matches!(self.what, What::Opened(_) | What::Ended { .. } | What::Places { .. } | What::AllPlaces)
    }

    fn undo(&self, shared: &Shared, database: &Database) {
        match &self.what {
            What::Resource { name, .. } | What::Later { name, .. } => shared.post(database, name, None),
            What::Judged { name, changed } => shared.post(database, name, *changed),
            What::InVain { name } => drop(shared.post_in_vain(database, name, clock::now())),
            What::Fenced { name, session, .. } => {
                post_if_left(shared, database, name, *session);
            }
            What::Many => database.flag(RESCAN),
            What::Flags(flags) => database.flag(*flags),
            What::Retired => database.may_keep(),
            What::Opened(session) => shared.erase(*session),
            // While it was frozen it was passed over, and what it waits for may have been judged without it.
            What::Ended { session, .. } => {
                if shared.thaw(*session) {
                    database.flag(RESCAN);
                }
            }
            What::Places { claimed: true, .. } | What::AllPlaces => {
                self.lower(shared, database);
                self.feed(shared, database);
            }
            What::Told(name) => shared.post_items(database, name),
            What::Revision(_)
            | What::Attached
            | What::Places { .. }
            | What::Items { .. }
            | What::Kept(_)
            | What::Due { .. }
            | What::TakenFrom(_)
            | What::EndedHeads(_)
            | What::AtCommit { .. } => (),
        }
    }

    /// What was claimed is not: wakes those who found it in somebody's hands.
    fn feed(&self, shared: &Shared, database: &Database) {
        match &self.what {
            What::Places { lane, claimed: true, .. } => {
                shared.feed(database, lane.queue, Food::ALL);
            }
            What::AllPlaces => shared.feed_all(database),
            _ => (),
        }
    }

    /// It is going to be committed, or not: what nobody can tell later is said now.
    fn prepare(&self, shared: &Shared, database: &Database) {
        self.lower(shared, database);
        if let What::Kept(Kept::Claims) = self.what {
            database.keep(Kept::Claims, clock::now());
        }
    }

    /// Lowers the floors that this is about.
    fn lower(&self, shared: &Shared, database: &Database) {
        match &self.what {
            What::Places { lane, from, .. } => shared.lower(*lane, *from),
            What::AllPlaces => shared.forget_floors(database.oid.load(std::sync::atomic::Ordering::Relaxed)),
            _ => (),
        }
    }
}

/// While a fenced transaction was open nobody could take over. For a lease of the living, but for one in its grace, nobody needs to look. Whether it
/// was posted.
fn post_if_left(shared: &Shared, database: &Database, resource: &str, session: SlotRef) -> bool {
    let left = shared.look(session).is_none_or(|standing| !standing.alive()) || shared.keeps_grace(session);
    if left {
        shared.post(database, resource, None);
    }
    left
}
