//! The notes of one transaction: a list that is local to its backend.

use super::effect::{Effect, Memory};
use super::items::{AllPlaces, Due, EndedHeads, Items, Places};
use super::resources::{AtCommit, InVain, Later, Many, Pass, Resource};
use super::sessions::{Ended, Opened, Revision, TakenFrom};
use super::work::{Retained, Taken};
use crate::base::limits;
use crate::shmem::slots::SlotRef;
use pgrx::pg_sys::{self, SubTransactionId};
use std::cell::{Cell, RefCell};

/// Notes among which one of the same lane is looked for.
const NEAR: usize = 16;

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

            /// See [`Effect::absorb`]: only notes of one kind do.
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
    EndedHeads, Taken, Retained
);

pub struct Note {
    pub subtransaction: SubTransactionId,
    pub what: What,
}

pub struct Notes {
    /// Of the transaction that has noted something.
    pub memory: Option<Memory>,
    pub list: Vec<Note>,
    resources: usize,
    /// Passes among them, or more.
    pub passes: usize,
    /// Passes that have ended because this transaction has given the lease away.
    pub given_away: usize,
    lanes: usize,
    /// No note is of a subtransaction after this one.
    pub newest: SubTransactionId,
    /// Of this transaction when it is being prepared.
    pub xid: u32,
    /// Whether this backend is a worker.
    pub worker: bool,
}

thread_local! {
    pub static NOTES: RefCell<Notes> = const {
        RefCell::new(Notes {
            memory: None, list: Vec::new(), resources: 0, passes: 0, given_away: 0, lanes: 0, newest: 0, xid: 0,
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

/// The subtransaction that this backend is in.
pub fn now() -> SubTransactionId {
    // SAFETY: in a transaction
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Returns whether one of the last notes of this subtransaction says so already, or does so now.
pub fn near(what: &What) -> bool {
    NOTES.with_borrow_mut(|notes| absorbed(&mut notes.list, now(), what))
}

/// Returns whether one of the last of some notes is of a subtransaction, and says what another one does, or does so
/// now.
fn absorbed(notes: &mut [Note], of: SubTransactionId, what: &What) -> bool {
    notes.iter_mut().rev().take(NEAR).any(|note| note.subtransaction == of && note.what.absorb(what))
}

/// Some notes. Which sessions live is settled, and floors are lowered, before anything is woken to look at what it
/// waits for.
pub fn in_order(notes: &[Note]) -> impl Iterator<Item = &dyn Effect> {
    let those = |first: bool| notes.iter().map(|note| note.what.effect()).filter(move |note| note.is_first() == first);
    those(true).chain(those(false))
}

impl Notes {
    /// All notes of a kind.
    pub fn each<K: Kind>(&self) -> impl Iterator<Item = &K> {
        self.list.iter().filter_map(|note| K::of(&note.what))
    }

    fn each_mut<K: Kind>(&mut self) -> impl Iterator<Item = &mut K> {
        self.list.iter_mut().filter_map(|note| K::of_mut(&mut note.what))
    }

    pub fn add(&mut self, memory: Memory, what: What) {
        self.memory = Some(memory);
        self.newest = now();
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

    /// Returns whether this subtransaction has noted places in more lanes than are noted.
    fn has_all_places(&self) -> bool {
        self.list.iter().any(|note| note.subtransaction == self.newest && AllPlaces::of(&note.what).is_some())
    }

    /// Begins the notes of the next transaction.
    pub fn clear(&mut self) {
        (self.resources, self.passes, self.given_away, self.lanes, self.newest) = (0, 0, 0, 0, 0);
        self.list.clear();
    }

    /// The sessions that may have been granted something.
    pub fn gainers(&self) -> impl Iterator<Item = SlotRef> {
        self.list.iter().filter_map(|note| note.what.effect().gainer())
    }

    /// Passes that ended because a subtransaction gave the lease away.
    fn given_away_by(&mut self, by: SubTransactionId) -> impl Iterator<Item = &mut Pass> {
        self.each_mut::<Pass>().filter(move |pass| pass.given_away == Some(by))
    }

    /// Where the notes of the innermost subtransaction begin: none that is open was begun later, so they are the last.
    fn begin_of(&self, mine: SubTransactionId) -> usize {
        self.list.iter().rposition(|note| note.subtransaction != mine).map_or(0, |before| before + 1)
    }

    /// A subtransaction commits: its notes are its parent's. What that has noted already is not noted again, so that
    /// with many subtransactions the list does not grow with their number; and only the notes of this one are looked
    /// at.
    pub fn hand_up(&mut self, mine: SubTransactionId, parent: SubTransactionId) {
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

    /// A subtransaction is rolled back: takes its notes away and gives them. What it had given away is back.
    pub fn take_back(&mut self, mine: SubTransactionId) -> Vec<Note> {
        let taken = self.list.split_off(self.begin_of(mine));
        self.lanes -= taken.iter().filter(|note| Places::of(&note.what).is_some()).count();
        if self.given_away > 0 {
            self.given_away -= self.given_away_by(mine).map(|pass| pass.given_away = None).count();
        }
        taken
    }
}
