//! The early end of a session, by its own close.

use super::sweep;
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::session;
use crate::shmem::slots::SlotRef;

/// Ends a session early, with this transaction: takes away its row and, as far as they are to be had, what it holds and
/// waits for.
pub fn end(call: &Call, at: SlotRef) -> Result<()> {
    // While another transaction grants to the session, that grant cannot be seen yet: the worker takes it away.
    let alone = Guard::Grantee(at.session()).try_lock(Mode::Exclusive);
    session::delete(call, &[at.session()]);
    let left = sweep::dissolve(call, &[at.session()], limits::MAX_HAND_OVER)?;
    call.seam().ended(at, alone && !left);
    Ok(())
}
