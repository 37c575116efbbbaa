//! The order of guards, asserted in debug builds. ARCHITECTURE.md has it as a table, whose steps are meant here.
//!
//! * Under a guard that is held for the time of one call no guard is waited for, save one that is after it.
//! * Within a call guards that are kept to the end of the transaction are waited for in the order of their places.
//!
//! PostgreSQL lets go of guards with a savepoint or a transaction, and tells nothing here. So what is kept here counts
//! while its subtransaction is open.

use super::transaction::{self, Part};
use std::cell::{Cell, RefCell};

/// Where a guard is in the order: its step, and which one it is of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub step: u8,
    pub key: i64,
}

thread_local! {
    /// The guards that are held for the time of a call.
    static HELD: RefCell<Vec<(Place, Part)>> = const { RefCell::new(Vec::new()) };
    /// What this call has waited for last, to keep it.
    static WAITED: Cell<Option<Place>> = const { Cell::new(None) };
}

/// A call of a verb begins, or a pass of a worker: what an earlier one has waited for does not bind it.
pub fn begin() {
    if cfg!(debug_assertions) {
        WAITED.set(None);
    }
}

/// A guard has been taken for the time of a call.
pub(super) fn took(place: Place) {
    if cfg!(debug_assertions) {
        HELD.with_borrow_mut(|held| held.push((place, transaction::part())));
    }
}

pub(super) fn gave_back(place: Place) {
    if cfg!(debug_assertions) {
        HELD.with_borrow_mut(|held| held.retain(|(known, _)| *known != place));
    }
}

/// A guard is about to be waited for. `None`: one that has no place of its own.
pub(super) fn waits_for(place: Option<Place>) {
    if cfg!(debug_assertions) {
        let held = held().into_iter().find(|held| place.is_none_or(|place| place <= *held));
        debug_assert!(held.is_none(), "{place:?} is waited for under {held:?}");
    }
}

/// A guard that is kept to the end of the transaction is about to be waited for.
pub(super) fn waits_to_keep(place: Place) {
    if cfg!(debug_assertions) {
        let last = WAITED.replace(Some(place));
        debug_assert!(last <= Some(place), "{place:?} is waited for after {last:?}");
    }
}

fn held() -> Vec<Place> {
    HELD.with_borrow_mut(|held| {
        held.retain(|(_, part)| part.is_open());
        held.iter().map(|(place, _)| *place).collect()
    })
}
