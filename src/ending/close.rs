//! Ends a session early: its own close.

use super::sweep;
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::session;
use crate::shmem::slots::SlotRef;

/// Ends a session early, with this transaction. Deletes its row, and what it holds and waits for, as far as other
/// transactions have not locked that.
pub fn end(call: &Call, at: SlotRef) -> Result<()> {
    // While another transaction grants to the session, this one does not see the grant. The worker takes that lease
    // away.
    let alone = Guard::Grantee(at.session()).try_lock(Mode::Exclusive);
    session::delete(call, &[at.session()]);
    let left = sweep::dissolve(call, &[at.session()], limits::MAX_HAND_OVER)?;
    call.seam().ended(at, alone && !left);
    Ok(())
}
