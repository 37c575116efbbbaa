//! Stand-ins: sessions that live and have no slot, because all slots are taken.
//!
//! That happens after a restart with a smaller `eskit_lease.max_sessions` than there are sessions, and on a promoted
//! standby with a smaller one. Such a session lives by its row, until `t0 + ttl` (see [`super::slots`]), and keeps
//! until then what it holds. It is granted nothing new, and no heartbeat extends it; the first call that finds a free
//! slot gives it that one, and from then on it is a session like others.
//!
//! A call that names such a session works with a stand-in: a slot in the memory of its own process, filled from the
//! row. So every verb goes on as with a real slot, and no other process sees what it writes there. What others must see
//! is written at the end of the transaction to the real slot, if the session has been given one meanwhile
//! ([`Shared::current`]); if it has none there is nothing to see but the row.

use super::counted::Counted;
use super::map::{Opening, halves};
use super::shared::Shared;
use super::slot::{PRIVATE, Slot, SlotRef};
use super::word::{FOREVER, State};
use crate::pg::catalog::Home;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Stand-ins that a process has at a time. One call works with few; an older one answers as a session that has ended.
const STAND_INS: usize = 64;
/// Their indexes, above those of all slots.
const FIRST: u32 = u32::MAX - STAND_INS as u32;

/// In each process its own, as all memory that is not shared.
static SLOTS: [Slot; STAND_INS] = [const {
    Slot {
        word: AtomicU64::new(0),
        cap: Counted::new(FOREVER),
        revision: Counted::new(0),
        uuid: [const { AtomicU64::new(0) }; 2],
        database: AtomicU32::new(0),
        table: AtomicU32::new(0),
        role: AtomicU32::new(0),
        ttl_ms: AtomicU32::new(0),
        opened_by: AtomicU32::new(0),
    }
}; STAND_INS];
static NEXT: AtomicU32 = AtomicU32::new(0);

impl SlotRef {
    /// Returns whether the session has no slot.
    pub fn is_stand_in(&self) -> bool {
        self.index >= FIRST
    }

    /// Its slot, if it is a stand-in.
    pub(super) fn of_this_process(&self) -> Option<&'static Slot> {
        SLOTS.get(self.index.checked_sub(FIRST)? as usize)
    }
}

impl Shared {
    /// A stand-in for a living session that has no slot.
    pub fn stand_in(&self, home: Home, opening: &Opening) -> SlotRef {
        let is_it = |slot: &Slot| slot.session() == opening.session && slot.home() == home;
        let fresh = || NEXT.fetch_add(1, Ordering::Relaxed) as usize % STAND_INS;
        let number = SLOTS.iter().position(is_it).unwrap_or_else(fresh);
        let slot = &SLOTS[number];
        for (half, value) in slot.uuid.iter().zip(halves(opening.session)) {
            half.store(value, Ordering::Relaxed);
        }
        slot.database.store(home.database, Ordering::Relaxed);
        slot.table.store(home.table, Ordering::Relaxed);
        slot.role.store(opening.role, Ordering::Relaxed);
        let private = if opening.private { PRIVATE } else { 0 };
        slot.ttl_ms.store(opening.ttl_ms.cast_unsigned() | private, Ordering::Relaxed);
        let state = if opening.frozen { State::Frozen } else { State::Alive };
        slot.word.store(slot.word().next(state, opening.deadline).0, Ordering::Relaxed);
        SlotRef { index: FIRST + number as u32, session: opening.session }
    }

    /// Where the session is now: the slot that it has been given since, for a stand-in.
    pub(super) fn current(&self, at: SlotRef) -> SlotRef {
        let found = at.of_this_process().and_then(|slot| self.find(slot.home(), at.session));
        found.unwrap_or(at)
    }
}
