//! The order of guards, asserted in debug builds. ARCHITECTURE.md has the order as a table; a step here is a step of
//! that table.
//!
//! * While a call holds a guard for the time of the call, it waits only for guards that come later in the order.
//! * A call waits in the order of the table for guards that it keeps to the end of the transaction.
//!
//! PostgreSQL releases guards with a savepoint or a transaction, and does not tell this module. So an entry here counts
//! only while its subtransaction is open.

use super::transaction::{self, Part};
use std::cell::{Cell, RefCell};

/// A guard's place in the order: its step, and its key within the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub step: u8,
    pub key: i64,
}

thread_local! {
    /// The guards that are held for the time of a call.
    static HELD: RefCell<Vec<(Place, Part)>> = const { RefCell::new(Vec::new()) };
    /// The guard that this call has last waited for, to keep it.
    static WAITED: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Begins a call of a verb, or a run of a worker. The guards that an earlier call has waited for do not bind it.
pub fn begin() {
    if cfg!(debug_assertions) {
        WAITED.set(None);
    }
}

/// Notes that a guard has been taken for the time of a call.
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

/// Asserts that this call may wait for a guard now. `None`: the guard has no place in the order.
pub(super) fn waits_for(place: Option<Place>) {
    if cfg!(debug_assertions) {
        let held = held().into_iter().find(|held| place.is_none_or(|place| place <= *held));
        debug_assert!(held.is_none(), "{place:?} is waited for under {held:?}");
    }
}

/// Asserts that this call may wait now for a guard that it keeps to the end of the transaction.
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
