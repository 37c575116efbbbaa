//! The notes of one transaction: a list that is local to its backend, and the kinds of them.

use super::end;
use crate::error::Result;
use crate::liveness::Shared;
use crate::liveness::databases::{Database, Kept};
use crate::liveness::floors::Lane;
use crate::liveness::hunger::Food;
use crate::liveness::slots::SlotRef;
use pgrx::Uuid;
use pgrx::pg_sys::{self, SubTransactionId};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

/// Resources that one transaction notes one by one; beyond, its database is rescanned. And lanes; beyond, all floors are forgotten.
const MAX_NOTES: usize = 1_000;
/// Notes among which one of the same lane is looked for.
const NEAR: usize = 16;

/// What is put off until a transaction commits: an ERROR of it is one of the COMMIT.
pub type Act = fn(&'static Shared, &str) -> Result<()>;

#[derive(Debug)]
pub enum What {
    /// To be judged again; `changed`: and listeners told of this slot, if this commits.
    Resource {
        name: String,
        changed: Option<i32>,
    },
    /// Could not be served by this transaction: to be tried soon, if it is not tried again already.
    InVain {
        name: String,
    },
    /// To be judged again at a time, if this commits.
    Later {
        name: String,
        at: u64,
    },
    /// To be done just before this commits.
    AtCommit {
        name: String,
        act: Act,
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
        food: Food,
    },
    /// Work items of a queue become due at a time, in microseconds since 2000.
    Due {
        queue: i32,
        at: i64,
    },
    /// Heads of keys have been ended, the first of them at this number.
    EndedHeads(i64),
    /// A row is kept for a while from now on.
    Kept(Kept),
    /// This transaction has looked for rows that are kept, and deleted such.
    Retired,
    /// Listeners are to be told of items, which has been taken out of the ring.
    Told(String),
    /// This transaction has taken something from these sessions, which are dead.
    TakenFrom(HashSet<Uuid>),
    Opened(SlotRef),
    /// Opened with attach, which ends with this backend and so cannot be prepared.
    Attached,
    /// `gone`: and no row of it is left.
    Ended {
        session: SlotRef,
        gone: bool,
    },
}

pub struct Note {
    pub subtransaction: SubTransactionId,
    pub what: What,
}

pub struct Notes {
    pub registered: bool,
    pub shared: Option<(&'static Shared, &'static Database)>,
    pub list: Vec<Note>,
    pub resources: usize,
    /// Passes among them, or more.
    pub passes: usize,
    /// Passes that have ended because this transaction has given the lease away.
    pub given_away: usize,
    pub lanes: usize,
    /// No note is of a subtransaction after this one.
    pub newest: SubTransactionId,
    /// Of this transaction when it is being prepared.
    pub xid: u32,
    /// Whether this backend is a worker, which has judged what it commits and tells listeners itself.
    pub worker: bool,
}

thread_local! {
    pub static NOTES: RefCell<Notes> = const {
        RefCell::new(Notes {
            registered: false, shared: None, list: Vec::new(), resources: 0, passes: 0, given_away: 0, lanes: 0, newest: 0, xid: 0,
            worker: false
        })
    };
    /// Grows with everything that can make or end a pass.
    static EPOCH: Cell<u64> = const { Cell::new(0) };
}

/// What was found of this transaction's passes stands for as long as this number does.
pub fn epoch() -> u64 {
    EPOCH.get()
}

pub fn next_epoch() {
    EPOCH.set(EPOCH.get().wrapping_add(1));
}

pub fn note(shared: &'static Shared, database: &'static Database, what: What) {
    next_epoch();
    NOTES.with_borrow_mut(|notes| {
        if !notes.registered {
            end::register();
            notes.registered = true;
        }
        notes.shared = Some((shared, database));
        // SAFETY: in a transaction
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        notes.newest = subtransaction;
        let what = match what {
            What::Resource { .. } | What::Later { .. } | What::InVain { .. } if notes.resources == MAX_NOTES => {
                What::Many
            }
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
            What::Resource { .. } | What::Later { .. } | What::InVain { .. } => notes.resources += 1,
            What::Fenced { .. } => notes.passes += 1,
            What::Places { .. } => notes.lanes += 1,
            _ => (),
        }
        notes.list.push(Note { subtransaction, what });
    });
}

/// Whether one of the last notes of this subtransaction says so already, or does so now.
pub fn near(what: &What) -> bool {
    // SAFETY: in a transaction
    let now = unsafe { pg_sys::GetCurrentSubTransactionId() };
    NOTES.with_borrow_mut(|notes| absorbed(&mut notes.list, now, what))
}

/// Whether one of the last of some notes is of a subtransaction, and says what another one does, or does so now.
fn absorbed(notes: &mut [Note], of: SubTransactionId, what: &What) -> bool {
    notes.iter_mut().rev().take(NEAR).any(|note| note.subtransaction == of && note.what.absorb(what))
}

impl What {
    /// Whether this says what another one does, of the same subtransaction; where it is about a range it is made wide enough.
    fn absorb(&mut self, other: &What) -> bool {
        match (self, other) {
            (What::Places { lane, from, claimed }, What::Places { lane: of, from: other, claimed: same })
                if (*lane, *claimed) == (*of, *same) =>
            {
                *from = (*from).min(*other);
                true
            }
            (What::Due { queue, at }, What::Due { queue: of, at: other }) if queue == of => {
                *at = (*at).min(*other);
                true
            }
            (What::EndedHeads(first), What::EndedHeads(other)) => {
                *first = (*first).min(*other);
                true
            }
            (What::Items { queue, food, .. }, What::Items { queue: of, food: other, .. }) if queue == of => {
                food.add(*other);
                true
            }
            (What::InVain { name }, What::InVain { name: of }) => name == of,
            (What::AtCommit { name, act }, What::AtCommit { name: of, act: other }) => {
                name == of && std::ptr::fn_addr_eq(*act, *other)
            }
            (What::Kept(kind), What::Kept(other)) => kind == other,
            (What::Revision(session), What::Revision(other)) => session == other,
            (What::AllPlaces, What::AllPlaces) => true,
            _ => false,
        }
    }
}

impl Notes {
    /// Where the notes of the innermost subtransaction begin: none that is open was begun later, so they are the last.
    fn begin_of(&self, mine: SubTransactionId) -> usize {
        self.list.iter().rposition(|note| note.subtransaction != mine).map_or(0, |before| before + 1)
    }

    /// A subtransaction commits: its notes are its parent's. What that has noted already is not noted again, so that with many
    /// subtransactions the list does not grow with their number; and only the notes of this one are looked at.
    pub fn hand_up(&mut self, mine: SubTransactionId, parent: SubTransactionId) {
        let first = self.begin_of(mine);
        let mut end = first;
        for next in first..self.list.len() {
            let (before, rest) = self.list.split_at_mut(next);
            if absorbed(&mut before[..end], parent, &rest[0].what) {
                self.lanes -= usize::from(rest[0].is_places());
            } else {
                rest[0].subtransaction = parent;
                self.list.swap(end, next);
                end += 1;
            }
        }
        self.list.truncate(end);
        if self.given_away > 0 {
            let given = self.list.iter_mut().filter_map(Note::given_away);
            given.filter(|given| **given == Some(mine)).for_each(|given| *given = Some(parent));
        }
    }

    /// A subtransaction is rolled back: takes its notes away and gives them. What it had given away is back.
    pub fn take_back(&mut self, mine: SubTransactionId) -> Vec<Note> {
        let taken = self.list.split_off(self.begin_of(mine));
        self.lanes -= taken.iter().filter(|note| note.is_places()).count();
        if self.given_away > 0 {
            let given = self.list.iter_mut().filter_map(Note::given_away).filter(|given| **given == Some(mine));
            self.given_away -= given.map(|given| *given = None).count();
        }
        taken
    }
}

impl Note {
    fn is_all_places(&self) -> bool {
        matches!(self.what, What::AllPlaces)
    }

    fn is_places(&self) -> bool {
        matches!(self.what, What::Places { .. })
    }

    /// Of a pass, in which subtransaction it was ended.
    fn given_away(&mut self) -> Option<&mut Option<SubTransactionId>> {
        if let What::Fenced { given_away, .. } = &mut self.what { Some(given_away) } else { None }
    }
}
