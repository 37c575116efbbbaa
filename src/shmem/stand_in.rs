//! Stand-ins: for sessions that live and have no slot, because all slots are taken.
//!
//! Slots are too few after a restart with a smaller `eskit_lease.max_sessions` than there are sessions, and on a
//! promoted standby whose setting is smaller. Such a session lives by its row, until `t0 + ttl` (see [`super::slots`]),
//! and keeps what it holds until then. It is granted nothing new, and no heartbeat extends it. The first call for it
//! that finds a free slot gives it that slot. Then it is a session like any other.
//!
//! A call that names such a session works with a stand-in: a slot in the memory of its own process, filled from the
//! row. So every verb works as with a real slot, but no other process sees what it writes there. If the session gets a
//! real slot meanwhile, the end of the transaction writes there what others must see ([`Shared::current`]). If it gets
//! none, the row says it all.

use super::counted::Counted;
use super::map::{Opening, halves};
use super::shared::Shared;
use super::slot::{PRIVATE, Slot, SlotRef};
use super::word::{FOREVER, State};
use crate::pg::catalog::Home;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many stand-ins a process has at a time. One call needs few of them. An older stand-in that is overwritten
/// answers like an ended session.
const STAND_INS: usize = 64;
/// The first index of a stand-in, above the indexes of all slots.
const FIRST: u32 = u32::MAX - STAND_INS as u32;

/// Each process has its own: this memory is not shared.
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

    /// Returns the stand-in's slot, in this process; `None` if this is not a stand-in.
    pub(super) fn of_this_process(&self) -> Option<&'static Slot> {
        SLOTS.get(self.index.checked_sub(FIRST)? as usize)
    }
}

impl Shared {
    /// Returns a stand-in for a living session that has no slot.
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
        slot.opened_by.store(opening.opened_by, Ordering::Relaxed);
        let state = if opening.frozen { State::Frozen } else { State::Alive };
        slot.word.store(slot.word().next(state, opening.deadline).0, Ordering::Relaxed);
        SlotRef { index: FIRST + number as u32, session: opening.session }
    }

    /// Returns the slot that the session of a stand-in has got since; otherwise the same reference.
    pub(super) fn current(&self, at: SlotRef) -> SlotRef {
        let found = at.of_this_process().and_then(|slot| self.find(slot.home(), at.session));
        found.unwrap_or(at)
    }
}
