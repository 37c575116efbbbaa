//! Sessions of an extension that was dropped in this database: they have slots, and no rows any more.

use crate::call::Call;
use crate::pg::catalog::Home;
use crate::shmem::slots::SlotRef;
use crate::shmem::word::{State, Word};

/// Whether a slot is that of a session of an extension that was dropped here.
pub(super) fn is_of_dropped(call: &Call, home: Home, word: Word) -> bool {
    home.database == call.home.database && home.table != call.home.table && word.state() != State::Gone
}

/// Ends sessions of an extension that was dropped, which have no rows any more; if it was by this very transaction,
/// once that is committed.
pub(super) fn end_dropped(call: &Call, of_dropped: Vec<SlotRef>) {
    for at in of_dropped {
        if !call.shared.being_opened(at) {
            call.seam().ended(at, true);
        }
    }
}
