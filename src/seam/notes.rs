//! The notes of one transaction: a list that is local to its backend.

use super::effect::{Effect, Memory};
use super::items::{AllPlaces, Due, EndedHeads, Items, Places};
use super::news::News;
use super::resources::{AtCommit, InVain, Later, Many, Pass, Resource};
use super::sessions::{Ended, Opened, Revision, TakenFrom};
use super::tally::Tally;
use super::work::{Retained, Taken};
use crate::base::limits;
use crate::shmem::slots::SlotRef;
use pgrx::pg_sys::{self, SubTransactionId};
use std::cell::{Cell, RefCell};

/// How many of the last notes are compared with a new one, to merge the two.
const NEAR: usize = 16;

/// The id of a transaction among those of its subtransactions.
const TOP: SubTransactionId = 1;

/// A kind of note.
pub trait Kind: Effect + 'static {
    fn of(what: &What) -> Option<&Self>;
    fn of_mut(what: &mut What) -> Option<&mut Self>;
}

macro_rules! kinds {
    ($($kind:ident),*) => {
        /// A note of any kind.
        pub enum What {
            $($kind($kind)),*
        }

        impl What {
            pub fn effect(&self) -> &dyn Effect {
                match self {
                    $(What::$kind(note) => note),*
                }
            }

            /// Merges another note into this one if they are of one kind (see [`Effect::absorb`]).
            fn absorb(&mut self, other: &What) -> bool {
                match (self, other) {
                    $((What::$kind(note), What::$kind(other)) => note.absorb(other),)*
                    _ => false,
                }
            }
        }

        $(
            impl From<$kind> for What {
                fn from(note: $kind) -> What {
                    What::$kind(note)
                }
            }

            impl Kind for $kind {
                fn of(what: &What) -> Option<&$kind> {
                    if let What::$kind(note) = what { Some(note) } else { None }
                }

                fn of_mut(what: &mut What) -> Option<&mut $kind> {
                    if let What::$kind(note) = what { Some(note) } else { None }
                }
            }
        )*
    };
}

kinds!(
    Resource, Later, InVain, Many, AtCommit, Pass, Opened, Ended, Revision, TakenFrom, Places, AllPlaces, Items, Due,
    EndedHeads, Taken, Retained, News
);

pub struct Note {
    pub subtransaction: SubTransactionId,
    pub what: What,
}

pub struct Notes {
    /// Where the notes take effect, if the transaction has any.
    pub memory: Option<Memory>,
    pub list: Vec<Note>,
    resources: usize,
    /// How many passes the list has, at most.
    pub passes: usize,
    /// How many passes have ended because this transaction gave the lease away.
    pub given_away: usize,
    /// The start of the statement that has checked a fence, if it was the transaction's only one so far.
    pub checked_alone: Option<i64>,
    lanes: usize,
    pub tally: Tally,
    /// No note is of a subtransaction later than this one.
    pub newest: SubTransactionId,
    /// The id of this transaction, set before it is prepared.
    pub xid: u32,
    /// Whether this backend is a worker.
    pub worker: bool,
}

thread_local! {
    pub static NOTES: RefCell<Notes> = const {
        RefCell::new(Notes {
            memory: None, list: Vec::new(), resources: 0, passes: 0, given_away: 0, checked_alone: None, lanes: 0,
            tally: Tally::new(), newest: 0, xid: 0, worker: false
        })
    };
    /// Grows with everything that can make or end a pass.
    static EPOCH: Cell<u64> = const { Cell::new(0) };
}

/// Returns the epoch. While it is the same, this transaction's passes are the same.
pub fn epoch() -> u64 {
    EPOCH.get()
}

pub fn next_epoch() {
    EPOCH.set(EPOCH.get().wrapping_add(1));
}

/// Returns the subtransaction that this backend is in.
pub fn now() -> SubTransactionId {
    // SAFETY: in a transaction
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Returns whether one of the last notes of this subtransaction absorbs a new note (see [`Effect::absorb`]).
pub fn near(what: &What) -> bool {
    NOTES.with_borrow_mut(|notes| absorbed(&mut notes.list, now(), what))
}

/// Returns whether one of the last of `notes` absorbs a new note. Only notes of the subtransaction `of` may do so.
fn absorbed(notes: &mut [Note], of: SubTransactionId, what: &What) -> bool {
    notes.iter_mut().rev().take(NEAR).any(|note| note.subtransaction == of && note.what.absorb(what))
}

/// Returns the effects of some notes in order: first the notes that decide which sessions live, or lower floors, since
/// the other notes wake sessions to look at that.
pub fn in_order(notes: &[Note]) -> impl Iterator<Item = &dyn Effect> {
    let those = |first: bool| notes.iter().map(|note| note.what.effect()).filter(move |note| note.is_first() == first);
    those(true).chain(those(false))
}

impl Notes {
    /// Returns all notes of a kind.
    pub fn each<K: Kind>(&self) -> impl Iterator<Item = &K> {
        self.list.iter().filter_map(|note| K::of(&note.what))
    }

    fn each_mut<K: Kind>(&mut self) -> impl Iterator<Item = &mut K> {
        self.list.iter_mut().filter_map(|note| K::of_mut(&mut note.what))
    }

    /// Notes that this subtransaction has effects.
    pub fn begin(&mut self, memory: Memory) {
        self.memory = Some(memory);
        self.newest = now();
    }

    pub fn add(&mut self, memory: Memory, what: What) {
        self.begin(memory);
        let what = match what {
            What::Resource(_) | What::Later(_) | What::InVain(_) if self.resources == limits::MAX_NOTES => Many.into(),
            What::Places(_) if self.lanes == limits::MAX_NOTES => AllPlaces.into(),
            what => what,
        };
        match what {
            What::Many(_) if self.each::<Many>().next().is_some() => return,
            What::AllPlaces(_) if self.has_all_places() => return,
            What::Resource(_) | What::Later(_) | What::InVain(_) => self.resources += 1,
            What::Pass(_) => self.passes += 1,
            What::Places(_) => self.lanes += 1,
            _ => (),
        }
        self.list.push(Note { subtransaction: self.newest, what });
    }

    /// Makes the last note the first one, and a note of the transaction itself: so it stays after a rollback to a
    /// savepoint.
    pub fn keep_last(&mut self) {
        if let Some(last) = self.list.pop() {
            self.list.insert(0, Note { subtransaction: TOP, ..last });
        }
    }

    /// Returns whether this subtransaction has noted claims or free items in more lanes than are listed.
    fn has_all_places(&self) -> bool {
        self.list.iter().any(|note| note.subtransaction == self.newest && AllPlaces::of(&note.what).is_some())
    }

    /// Begins the notes of the next transaction.
    pub fn clear(&mut self) {
        (self.resources, self.passes, self.given_away, self.lanes, self.newest) = (0, 0, 0, 0, 0);
        self.checked_alone = None;
        self.list.clear();
        self.tally.clear();
    }

    /// Returns the sessions that may have been granted something.
    pub fn gainers(&self) -> impl Iterator<Item = SlotRef> {
        self.list.iter().filter_map(|note| note.what.effect().gainer())
    }

    /// Returns the passes that ended because a subtransaction gave the lease away.
    fn given_away_by(&mut self, by: SubTransactionId) -> impl Iterator<Item = &mut Pass> {
        self.each_mut::<Pass>().filter(move |pass| pass.given_away == Some(by))
    }

    /// Returns where the notes of the innermost subtransaction begin. They are the last ones, as no open subtransaction
    /// began later.
    fn begin_of(&self, mine: SubTransactionId) -> usize {
        self.list.iter().rposition(|note| note.subtransaction != mine).map_or(0, |before| before + 1)
    }

    /// Gives the notes of a subtransaction to its parent when it commits. A note that merges into one of the parent's
    /// is dropped: so the list does not grow with the number of subtransactions. Only this subtransaction's notes are
    /// visited.
    pub fn hand_up(&mut self, mine: SubTransactionId, parent: SubTransactionId) {
        self.tally.hand_up(mine, parent);
        let first = self.begin_of(mine);
        let mut end = first;
        for next in first..self.list.len() {
            let (before, rest) = self.list.split_at_mut(next);
            if absorbed(&mut before[..end], parent, &rest[0].what) {
                self.lanes -= usize::from(Places::of(&rest[0].what).is_some());
            } else {
                rest[0].subtransaction = parent;
                self.list.swap(end, next);
                end += 1;
            }
        }
        self.list.truncate(end);
        if self.given_away > 0 {
            self.given_away_by(mine).for_each(|pass| pass.given_away = Some(parent));
        }
    }

    /// Takes away the notes of a subtransaction that is rolled back, and returns them. A lease that it gave away is
    /// back, and its pass stands again.
    pub fn take_back(&mut self, mine: SubTransactionId) -> Vec<Note> {
        self.tally.take_back(mine);
        let taken = self.list.split_off(self.begin_of(mine));
        self.lanes -= taken.iter().filter(|note| Places::of(&note.what).is_some()).count();
        if self.given_away > 0 {
            self.given_away -= self.given_away_by(mine).map(|pass| pass.given_away = None).count();
        }
        taken
    }
}
