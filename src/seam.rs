//! The seam between rows and shared memory: what happens there when a transaction ends.
//!
//! Two transactions that cross see neither each other's rows: one leaves a resource free, the other queues for it, and nobody
//! grants. So every verb that changes, fences or queues for a resource notes it here, with its subtransaction. When the transaction
//! has ended either way, and what it did is visible, the resources go to the dirty ring and the worker judges them again. Both of two
//! that cross do so, hence the later one is judged with both in sight.
//!
//! | event            | sessions opened here | sessions ended here | revisions  | resources              |
//! |------------------|----------------------|---------------------|------------|------------------------|
//! | pre-commit       |                      | frozen              |            |                        |
//! | commit           |                      | dead                | bumped     | to the ring            |
//! | abort            | dead, without a trace | alive again        |            | to the ring, unchanged |
//! | pre-prepare      | refused if attached  | frozen              |            |                        |
//! | prepare          |                      | stay frozen         |            | the xid is watched, then all are rescanned |
//! | rollback to savepoint | dead, without a trace | nothing was done yet |       | to the ring at once, unchanged |
//!
//! Work items have floors instead (see [`crate::liveness::floors`]): what has become free lowers them at commit, what was claimed does so
//! at a rollback, and both do at PREPARE. Whoever waits for items is woken at commit.
//!
//! The callbacks run where an ERROR would bring the server down, so they only copy, change atomics and set latches.

use crate::error::Error;
use crate::liveness::Shared;
use crate::liveness::databases::{Database, RESCAN};
use crate::liveness::floors::Lane;
use crate::liveness::slots::SlotRef;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, SubTransactionId};
use std::cell::{Cell, RefCell};

/// Resources that one transaction notes one by one; beyond, its database is rescanned. And lanes; beyond, all floors are forgotten.
const MAX_NOTES: usize = 1_000;
/// Notes among which one of the same lane is looked for.
const NEAR: usize = 16;

#[derive(Debug)]
enum What {
    /// To be judged again; `changed`: and listeners told of this slot, if this commits.
    Resource {
        name: String,
        changed: Option<i32>,
    },
    /// To be judged again at a time, if this commits.
    Later {
        name: String,
        at: u64,
    },
    /// Fenced by this transaction: to be judged again if the session is dead by then.
    Fenced {
        name: String,
        slot: i32,
        fence: i64,
        session: SlotRef,
        /// Where this transaction has given the lease away itself, and the pass ended.
        given_away: Option<SubTransactionId>,
    },
    /// Taken out of the ring to be judged by this transaction; put back if it fails.
    Judged {
        name: String,
        changed: Option<i32>,
    },
    /// More resources than are noted.
    Many,
    /// Flags of the database that this transaction has taken and does what they ask for.
    Flags(u32),
    Revision(SlotRef),
    /// Work items at this place of a lane, or beyond, have been claimed, or else made free.
    Places {
        lane: Lane,
        from: i64,
        claimed: bool,
    },
    /// In more lanes than are noted.
    AllPlaces,
    /// Work items have become free in a queue.
    Items {
        queue: i32,
        name: String,
    },
    /// Listeners are to be told of items, which has been taken out of the ring.
    Told(String),
    Opened(SlotRef),
    /// Opened with attach, which ends with this backend and so cannot be prepared.
    Attached,
    /// `gone`: and no row of it is left.
    Ended {
        session: SlotRef,
        gone: bool,
    },
}

struct Note {
    subtransaction: SubTransactionId,
    what: What,
}

struct Notes {
    registered: bool,
    shared: Option<(&'static Shared, &'static Database)>,
    list: Vec<Note>,
    resources: usize,
    /// Passes among them, or more.
    passes: usize,
    lanes: usize,
    /// No note is of a subtransaction after this one.
    newest: SubTransactionId,
    /// Of this transaction when it is being prepared.
    xid: u32,
    /// Whether this backend is a worker, which has judged what it commits and tells listeners itself.
    worker: bool,
}

thread_local! {
    static NOTES: RefCell<Notes> = const {
        RefCell::new(Notes {
            registered: false, shared: None, list: Vec::new(), resources: 0, passes: 0, lanes: 0, newest: 0, xid: 0, worker: false
        })
    };
    /// Grows with everything that can make or end a pass.
    static EPOCH: Cell<u64> = const { Cell::new(0) };
}

/// What was found of this transaction's passes stands for as long as this number does.
pub fn epoch() -> u64 {
    EPOCH.get()
}

fn next_epoch() {
    EPOCH.set(EPOCH.get().wrapping_add(1));
}

fn note(shared: &'static Shared, database: &'static Database, what: What) {
    next_epoch();
    NOTES.with_borrow_mut(|notes| {
        if !notes.registered {
            // SAFETY: the callbacks stay loaded
            unsafe {
                pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
                pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
            }
            notes.registered = true;
        }
        notes.shared = Some((shared, database));
        // SAFETY: in a transaction
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        notes.newest = subtransaction;
        let what = match what {
            What::Resource { .. } | What::Later { .. } if notes.resources == MAX_NOTES => What::Many,
            What::Places { .. } if notes.lanes == MAX_NOTES => What::AllPlaces,
            what => what,
        };
        match what {
            What::Many if notes.list.iter().any(|note| matches!(note.what, What::Many)) => {
                return;
            }
            What::AllPlaces if notes.list.iter().any(|n| n.is_all_places() && n.subtransaction == subtransaction) => {
                return;
            }
            What::Resource { .. } | What::Later { .. } => notes.resources += 1,
            What::Fenced { .. } => notes.passes += 1,
            What::Places { .. } => notes.lanes += 1,
            _ => (),
        }
        notes.list.push(Note { subtransaction, what });
    });
}

/// What a verb notes; all of it is for the database that this backend is connected to.
#[derive(Clone, Copy)]
pub struct Seam {
    pub shared: &'static Shared,
    pub database: &'static Database,
}

impl Seam {
    /// The owner of a slot of the resource changes if this commits.
    pub fn changed(self, resource: &str, slot: i32) {
        // SAFETY: in a transaction
        let now = unsafe { pg_sys::GetCurrentSubTransactionId() };
        NOTES.with_borrow_mut(|notes| {
            // A bulk call changes many, and mostly has passed nothing.
            notes.newest = now;
            let noted = if notes.passes > 0 { notes.list.as_mut_slice() } else { &mut [] };
            for note in noted {
                if let What::Fenced { name, slot: of, given_away: given @ None, .. } = &mut note.what
                    && *of == slot
                    && name == resource
                {
                    *given = Some(now);
                }
            }
        });
        self.note(What::Resource { name: resource.to_owned(), changed: Some(slot) });
    }

    /// Somebody queues, or could not be served.
    pub fn judge(self, resource: &str) {
        self.note(What::Resource { name: resource.to_owned(), changed: None });
    }

    /// Something is to be done about the resource at a time, if this commits.
    pub fn judge_at(self, resource: &str, at: u64) {
        self.note(What::Later { name: resource.to_owned(), at });
    }

    pub fn fenced(self, resource: &str, slot: i32, fence: i64, session: SlotRef) {
        self.note(What::Fenced { name: resource.to_owned(), slot, fence, session, given_away: None });
    }

    /// Whether this transaction has noted a check of the fence that still stands: a rollback to a savepoint forgets those after it, and
    /// who gives the lease away ends it.
    pub fn has_fenced(self, fence: i64) -> bool {
        let is_it =
            |note: &Note| matches!(note.what, What::Fenced { fence: noted, given_away: None, .. } if noted == fence);
        NOTES.with_borrow(|notes| notes.list.iter().any(is_it))
    }

    /// This transaction judges what it has taken out of the ring.
    pub fn judged(self, resource: &str, changed: Option<i32>) {
        self.note(What::Judged { name: resource.to_owned(), changed });
    }

    /// More resources than anybody lists.
    pub fn many(self) {
        self.note(What::Many);
    }

    /// This transaction does what these flags of the database ask for; they are set again if it fails.
    pub fn flags(self, flags: u32) {
        self.note(What::Flags(flags));
    }

    /// What the session holds or waits for changes if this commits.
    pub fn revise(self, session: SlotRef) {
        let known = |note: &Note| matches!(note.what, What::Revision(known) if known == session);
        // SAFETY: in a transaction
        let now = unsafe { pg_sys::GetCurrentSubTransactionId() };
        let twice = NOTES.with_borrow(|notes| notes.list.iter().any(|n| n.subtransaction == now && known(n)));
        if !twice {
            self.note(What::Revision(session));
        }
    }

    pub fn opened(self, session: SlotRef, attached: bool) {
        self.note(What::Opened(session));
        if attached {
            self.note(What::Attached);
        }
    }

    pub fn ended(self, session: SlotRef, gone: bool) {
        self.note(What::Ended { session, gone });
    }

    /// Items of a lane have been claimed, or else made free: none before the place `from`.
    pub fn places(self, lane: Lane, from: i64, claimed: bool) {
        let known = near(|what| match what {
            What::Places { lane: known, from: least, claimed: same } if (*known, *same) == (lane, claimed) => {
                *least = from.min(*least);
                true
            }
            _ => false,
        });
        if !known {
            self.note(What::Places { lane, from, claimed });
        }
    }

    /// Items have become free in a queue if this commits.
    pub fn items(self, queue: i32, name: &str) {
        if !near(|what| matches!(what, What::Items { queue: known, .. } if *known == queue)) {
            self.note(What::Items { queue, name: name.to_owned() });
        }
    }

    /// This transaction tells listeners of items, as the ring has asked for.
    pub fn told(self, queue: &str) {
        self.note(What::Told(queue.to_owned()));
    }

    fn note(self, what: What) {
        note(self.shared, self.database, what);
    }
}

/// Whether one of the last notes of this subtransaction is one that serves, made so by `serves` itself.
fn near(mut serves: impl FnMut(&mut What) -> bool) -> bool {
    // SAFETY: in a transaction
    let now = unsafe { pg_sys::GetCurrentSubTransactionId() };
    NOTES.with_borrow_mut(|notes| {
        notes.list.iter_mut().rev().take(NEAR).any(|note| note.subtransaction == now && serves(&mut note.what))
    })
}

/// The passes of this transaction for a slot of a resource, or for any: their fences, of those that stand; and whether there were others,
/// of leases that it has given away.
pub fn passes(resource: &str, slot: Option<i32>) -> (Vec<i64>, bool) {
    let (mut standing, mut given) = (Vec::new(), false);
    NOTES.with_borrow(|notes| {
        for note in &notes.list {
            if let What::Fenced { name, slot: of, fence, given_away, .. } = &note.what
                && slot.is_none_or(|slot| slot == *of)
                && name == resource
            {
                match given_away {
                    None => standing.push(*fence),
                    Some(_) => given = true,
                }
            }
        }
    });
    (standing, given)
}

/// Whether this transaction ends the session.
pub fn has_ended(session: SlotRef) -> bool {
    let is_it = |note: &Note| matches!(note.what, What::Ended { session: noted, .. } if noted == session);
    NOTES.with_borrow(|notes| notes.list.iter().any(is_it))
}

/// Whether this transaction ends any session.
pub fn ends_sessions() -> bool {
    NOTES.with_borrow(|notes| notes.list.iter().any(|note| matches!(note.what, What::Ended { .. })))
}

/// From now on this backend is a worker: what its transactions commit is not posted to itself.
pub fn i_am_a_worker() {
    NOTES.with_borrow_mut(|notes| notes.worker = true);
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

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    use pg_sys::XactEvent::*;
    next_epoch();
    match event {
        // Before a prepare an error is an ordinary one.
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE if before_end(event) => {
            ErrorReport::from(Error::AttachPrepared).report(pgrx::PgLogLevel::ERROR);
        }
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => NOTES.with_borrow_mut(|notes| {
            if let Some((shared, database)) = notes.shared.take() {
                let stirred = match event {
                    XACT_EVENT_PREPARE => {
                        notes.list.iter().for_each(|note| note.lower(shared, database));
                        shared.watch_prepared(database, notes.xid);
                        true
                    }
                    _ => notes.settle(shared, database, event == XACT_EVENT_COMMIT),
                };
                notes.resources = 0;
                notes.passes = 0;
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
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
                for note in &mut notes.list {
                    for at in note.subtransactions().filter(|at| **at == mine) {
                        *at = parent;
                    }
                }
            }
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                let before = notes.list.len();
                for note in notes.in_order().filter(|note| note.subtransaction == mine) {
                    note.undo(shared, database);
                }
                notes.list.retain(|note| note.subtransaction != mine);
                for note in &mut notes.list {
                    // What was given away is back.
                    if let What::Fenced { given_away, .. } = &mut note.what {
                        given_away.take_if(|at| *at == mine);
                    }
                }
                if notes.list.len() < before {
                    shared.wake(database);
                }
            }
            _ => return,
        }
        // Those that are open now are before it, and it was the last.
        notes.newest = parent;
    });
}

impl Notes {
    fn opened(&self, session: SlotRef) -> bool {
        self.list.iter().any(|note| matches!(note.what, What::Opened(opened) if opened == session))
    }

    /// The notes; who lives is settled, and floors are lowered, before anybody is told to look at what they wait for.
    fn in_order(&self) -> impl Iterator<Item = &Note> {
        let those = |first: bool| self.list.iter().filter(move |note| note.is_first() == first);
        those(true).chain(those(false))
    }

    /// The transaction has ended, and what it did is visible, or never will be. Whether the worker is to look: not for a transaction that
    /// was fenced by the living and did nothing else, as most are.
    fn settle(&self, shared: &'static Shared, database: &'static Database, committed: bool) -> bool {
        let mut stirred = false;
        for note in self.in_order() {
            match &note.what {
                What::Fenced { name, session, .. } => {
                    stirred |= post_if_dead(shared, database, name, *session);
                    continue;
                }
                What::Places { claimed, .. } if *claimed == committed => continue,
                What::Places { .. } | What::AllPlaces => {
                    note.lower(shared, database);
                    continue;
                }
                What::Items { queue, name } => {
                    if committed && shared.feed(database, *queue) {
                        shared.post_items(database, name);
                        stirred = true;
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
                What::Revision(session) => shared.bump(*session),
                What::Ended { session, gone: true } if self.opened(*session) => shared.erase(*session),
                What::Ended { session, gone } => shared.end(*session, *gone),
                // Its time may have passed while its transaction was open, so that it was swept before it had a row.
                What::Opened(session) if shared.look(*session).is_none_or(|standing| !standing.alive()) => {
                    database.flag(RESCAN);
                }
                What::Opened(_)
                | What::Attached
                | What::Flags(_)
                | What::Judged { .. }
                | What::Told(_)
                | What::Fenced { .. }
                | What::Places { .. }
                | What::AllPlaces
                | What::Items { .. } => (),
            }
        }
        stirred
    }
}

impl Note {
    /// That which it was made in, and for a pass that which ended it.
    fn subtransactions(&mut self) -> impl Iterator<Item = &mut SubTransactionId> {
        let ended = match &mut self.what {
            What::Fenced { given_away, .. } => given_away.as_mut(),
            _ => None,
        };
        std::iter::once(&mut self.subtransaction).chain(ended)
    }

    fn is_all_places(&self) -> bool {
        matches!(self.what, What::AllPlaces)
    }

    fn is_first(&self) -> bool {
        matches!(self.what, What::Opened(_) | What::Ended { .. } | What::Places { .. } | What::AllPlaces)
    }

    fn undo(&self, shared: &Shared, database: &Database) {
        match &self.what {
            What::Resource { name, .. } | What::Later { name, .. } => shared.post(database, name, None),
            What::Judged { name, changed } => shared.post(database, name, *changed),
            What::Fenced { name, session, .. } => {
                post_if_dead(shared, database, name, *session);
            }
            What::Many => database.flag(RESCAN),
            What::Flags(flags) => database.flag(*flags),
            What::Opened(session) => shared.erase(*session),
            What::Ended { session, .. } => shared.thaw(*session),
            What::Places { claimed: true, .. } | What::AllPlaces => self.lower(shared, database),
            What::Told(name) => shared.post_items(database, name),
            What::Revision(_) | What::Attached | What::Places { .. } | What::Items { .. } => (),
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

/// While a fenced transaction was open nobody could take over. Who lives needs nobody to look. Whether it was posted.
fn post_if_dead(shared: &Shared, database: &Database, resource: &str, session: SlotRef) -> bool {
    let dead = shared.look(session).is_none_or(|standing| !standing.alive());
    if dead {
        shared.post(database, resource, None);
    }
    dead
}
