//! The map from session to slot, and the free slots.

use super::parts::{Key, MAP_PARTITIONS, MapEntry};
use super::shared::{Lock, Shared};
use super::slot::{PRIVATE, Slot, SlotRef};
use super::word::{FOREVER, State};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::catalog::Home;
use crate::pg::clock;
use crate::pg::text::role_name;
use pgrx::{Uuid, pg_sys};
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// What a session is made with.
pub struct Opening {
    pub session: Uuid,
    pub role: u32,
    pub ttl_ms: i32,
    pub private: bool,
    pub deadline: u64,
    /// The transaction that opens the session; zero if it was opened before a restart.
    pub opened_by: u32,
    /// Only a confirmation that begins after this time vouches for what the session was granted (see
    /// [`super::confirm`]). Zero if it was granted nothing so far.
    pub unproven: u64,
    /// Whether an end of the session is prepared.
    pub frozen: bool,
    /// How many slots the role may have, if that is bounded.
    pub most: Option<u32>,
}

/// How often a call looks for a free slot. In between it reclaims slots, and other calls may take these.
const TRIES: usize = 4;

/// Makes the map from session to slot. The postmaster calls this when it makes shared memory.
pub unsafe fn init_map(sessions: usize) -> *mut pg_sys::HTAB {
    let mut control = pg_sys::HASHCTL {
        num_partitions: MAP_PARTITIONS as _,
        keysize: size_of::<Key>(),
        entrysize: size_of::<MapEntry>(),
        ..Default::default()
    };
    let flags = pg_sys::HASH_ELEM | pg_sys::HASH_BLOBS | pg_sys::HASH_PARTITION;
    // SAFETY: called from the startup hook
    unsafe {
        let name = c"eskit_lease sessions".as_ptr();
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
        return pg_sys::ShmemInitHash(name, sessions as _, sessions as _, &mut control, flags as _);
        #[cfg(feature = "pg19")]
        return pg_sys::ShmemInitHash(name, sessions as _, &mut control, flags as _);
    }
}

thread_local! {
    /// Slots that this backend used last, each at an index that its uuid gives: a steady client's heartbeat searches no
    /// table.
    static LAST: [Cell<Option<SlotRef>>; 16] = const { [const { Cell::new(None) }; 16] };
}

pub(super) fn halves(session: Uuid) -> [u64; 2] {
    let bits = u128::from_be_bytes(*session.as_bytes());
    [(bits >> 64) as u64, bits as u64]
}

impl Shared {
    /// Returns the slot of a session, if it has one.
    pub fn find(&self, home: Home, session: Uuid) -> Option<SlotRef> {
        let is_it = |at: &SlotRef| {
            let slot = self.slot(*at);
            at.session == session
                && slot.word().state() != State::Free
                && slot.session() == session
                && slot.home() == home
        };
        let place = usize::from(session.as_bytes()[0] & 15);
        if let Some(last) = LAST.with(|slots| slots[place].get()).filter(is_it) {
            return Some(last);
        }
        let key = Key { uuid: *session.as_bytes(), database: home.database, table: home.table };
        let mut found = false;
        // SAFETY: the map is PostgreSQL's own, looked into under the lock of the key's partition
        let index = unsafe {
            let hash = pg_sys::get_hash_value(self.map, (&raw const key).cast());
            let _held = self.lock(Lock::Map(hash), false);
            let entry = pg_sys::hash_search_with_hash_value(
                self.map,
                (&raw const key).cast(),
                hash,
                pg_sys::HASHACTION::HASH_FIND,
                &mut found,
            );
            entry.cast::<MapEntry>().as_ref().map(|entry| entry.slot)
        };
        let at = SlotRef { index: index?, session };
        is_it(&at).then(|| {
            LAST.with(|slots| slots[place].set(Some(at)));
            at
        })
    }

    /// Gives a session a slot. If another process was faster, returns the slot that the session has.
    pub fn enter(&self, home: Home, opening: Opening) -> Result<SlotRef> {
        let session = opening.session;
        let index = self.allocate(&opening)?;
        let slot = &self.slots[index as usize];
        for (half, value) in slot.uuid.iter().zip(halves(session)) {
            half.store(value, Ordering::Relaxed);
        }
        let count = slot.word().next(State::Free, 0).count();
        slot.cap.begin(count, FOREVER);
        slot.revision.begin(count, clock::wall());
        slot.database.store(home.database, Ordering::Relaxed);
        slot.table.store(home.table, Ordering::Relaxed);
        let private = if opening.private { PRIVATE } else { 0 };
        slot.ttl_ms.store(opening.ttl_ms.cast_unsigned() | private, Ordering::Relaxed);
        slot.opened_by.store(opening.opened_by, Ordering::Relaxed);
        self.attached[index as usize].begin(count, 0);
        self.is_fed(index, count);
        self.end_watch(index, count);
        self.unproven[index as usize].begin(count, opening.unproven);
        let key = Key { uuid: *session.as_bytes(), database: home.database, table: home.table };
        let mut found = false;
        // SAFETY: the map is PostgreSQL's own, changed under the lock of the key's partition; ENTER_NULL does not raise
        let entered = unsafe {
            let hash = pg_sys::get_hash_value(self.map, (&raw const key).cast());
            let _held = self.lock(Lock::Map(hash), true);
            let entry = pg_sys::hash_search_with_hash_value(
                self.map,
                (&raw const key).cast(),
                hash,
                pg_sys::HASHACTION::HASH_ENTER_NULL,
                &mut found,
            );
            entry.cast::<MapEntry>().as_mut().map(|entry| {
                if !found {
                    entry.slot = index;
                    let state = if opening.frozen { State::Frozen } else { State::Alive };
                    slot.word.store(slot.word().next(state, opening.deadline).0, Ordering::Release);
                }
                entry.slot
            })
        };
        if entered != Some(index) {
            self.give_back(index);
        }
        let at = SlotRef { index: entered.ok_or(Error::SessionsFull)?, session };
        self.due_at(at, opening.deadline);
        Ok(at)
    }

    /// Takes a free slot, or the slot of an ended session that needs it no more.
    fn allocate(&self, opening: &Opening) -> Result<u32> {
        for attempt in 0..TRIES {
            match self.take_free(opening) {
                Ok(Some(index)) => return Ok(index),
                Ok(None) => (),
                Err(most) => return Err(Error::RoleFull { role: role_name(opening.role.into()), most }.into()),
            }
            // The opening of a new session must look, since a refusal is final. A call for a session that was opened
            // before a restart need not: every call that names it tries again. There may be many such sessions.
            let now = clock::now();
            let must_look = attempt == 0 && opening.opened_by != 0;
            if !must_look && now < self.header.reclaim_at.load(Ordering::Acquire) {
                break;
            }
            self.header.reclaim_at.store(now + limits::RECLAIM_AT_MOST_EVERY, Ordering::Release);
            self.reclaim(now);
        }
        Err(Error::SessionsFull.into())
    }

    /// Takes a free slot, if there is one. If the role has as many slots as it may have, the error is that bound.
    fn take_free(&self, opening: &Opening) -> std::result::Result<Option<u32>, u32> {
        let _held = self.lock(Lock::Alloc, true);
        if let Some(most) = opening.most.filter(|most| self.slots_of(opening.role) >= *most) {
            return Err(most);
        }
        let (free, used) = (&self.header.free, &self.header.used);
        let (first, unused) = (free.load(Ordering::Relaxed), used.load(Ordering::Relaxed));
        let index = if first != 0 {
            free.store(self.slots[first as usize - 1].word().at() as u32, Ordering::Relaxed);
            first - 1
        } else if (unused as usize) < self.slots.len() {
            used.store(unused + 1, Ordering::Release);
            unused
        } else {
            return Ok(None);
        };
        // From now on the slot counts for the role.
        self.slots[index as usize].role.store(opening.role, Ordering::Release);
        Ok(Some(index))
    }

    /// Returns how many slots the sessions of a role have. The caller holds Lock::Alloc, so a session that is just
    /// being entered counts.
    fn slots_of(&self, role: u32) -> u32 {
        let now = clock::now();
        let is_its = |slot: &&Slot| slot.role.load(Ordering::Relaxed) == role && !slot.word().reclaimable(now);
        let count = self.slots[..self.used() as usize].iter().filter(is_its).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn give_back(&self, index: u32) {
        let _held = self.lock(Lock::Alloc, true);
        let slot = &self.slots[index as usize];
        let next = self.header.free.swap(index + 1, Ordering::Relaxed);
        slot.role.store(0, Ordering::Release);
        slot.word.store(slot.word().free(u64::from(next)).0, Ordering::Release);
    }

    /// Frees the slots that ended sessions need no more. Returns until when the next slot is needed.
    pub fn reclaim(&self, now: u64) -> u64 {
        let (mut over, mut next) = (Vec::new(), FOREVER);
        self.each(now, |at, home, word| match word.state() {
            State::Gone if word.reclaimable(now) => over.push((at, home, word)),
            State::Gone => next = next.min(word.at()),
            _ => (),
        });
        for (SlotRef { index, session }, home, word) in over {
            let slot = &self.slots[index as usize];
            let key = Key { uuid: *session.as_bytes(), database: home.database, table: home.table };
            // SAFETY: as in find() and enter()
            let freed = unsafe {
                let hash = pg_sys::get_hash_value(self.map, (&raw const key).cast());
                let _held = self.lock(Lock::Map(hash), true);
                let freed =
                    slot.word.compare_exchange(word.0, word.free(0).0, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if freed {
                    let (key, remove) = ((&raw const key).cast(), pg_sys::HASHACTION::HASH_REMOVE);
                    pg_sys::hash_search_with_hash_value(self.map, key, hash, remove, std::ptr::null_mut());
                }
                freed
            };
            if freed {
                self.give_back(index);
            }
        }
        next
    }
}
