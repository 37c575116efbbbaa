//! Sessions of an extension that was dropped in this database: they have slots, but no rows any more.

use crate::call::Call;
use crate::pg::catalog::Home;
use crate::shmem::slots::SlotRef;
use crate::shmem::word::{State, Word};

/// Returns whether a slot belongs to a session of an extension that was dropped here.
pub(super) fn is_of_dropped(call: &Call, home: Home, word: Word) -> bool {
    home.database == call.home.database && home.table != call.home.table && word.state() != State::Gone
}

/// Ends sessions of a dropped extension, which have no rows any more. If this transaction dropped it, they end when it
/// commits.
pub(super) fn end_dropped(call: &Call, of_dropped: Vec<SlotRef>) {
    for at in of_dropped {
        if !call.shared.being_opened(at) {
            call.seam().ended(at, true);
        }
    }
}
