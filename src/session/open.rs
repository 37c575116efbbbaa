//! Opening a session: its uuid, its row and its slot.

use super::row::{self, New};
use crate::base::error::Result;
use crate::base::settings;
use crate::call::Call;
use crate::pg::{clock, random, transaction};
use crate::shmem::counters::Counter;
use crate::shmem::map::Opening;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::datum::TimestampWithTimeZone;

/// Opens a session: writes its row, makes its slot, and notes with the seam that a rollback must undo the slot.
pub fn open(call: &Call, new: New) -> Result<SlotRef> {
    let session = random_uuid();
    row::insert(call, session, &new);
    let New { role, ttl_ms, private, attached, .. } = new;
    let deadline = clock::now() + u64::from(ttl_ms.cast_unsigned()) * 1_000;
    let opened_by = transaction::id_if_any();
    let (unproven, frozen, most) = (0, false, settings::max_sessions_per_role());
    let opening = Opening { session, role, ttl_ms, private, deadline, opened_by, unproven, frozen, most };
    let at = call.shared.enter(call.home, opening)?;
    call.seam().opened(at, attached);
    call.seam().count(Counter::SessionsOpened, 1);
    Ok(at)
}

/// Returns a version 4 uuid from a cryptographically strong source. The uuid is the handle of the session and must not
/// be guessable.
fn random_uuid() -> Uuid {
    let mut bytes: [u8; 16] = random::strong();
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}

/// Returns the wall-clock time at which `left` microseconds from now have passed; it is only shown to people.
pub fn wall_clock(left: u64) -> Option<TimestampWithTimeZone> {
    const SINCE_2000: u64 = 946_684_800_000_000;
    i64::try_from(clock::wall().saturating_sub(SINCE_2000) + left).ok()?.try_into().ok()
}
