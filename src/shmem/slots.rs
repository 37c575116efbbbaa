//! Slots: one session each.
//!
//! A session with a slot is alive if its slot says so. After a restart a session may have no slot; then its row
//! decides. If the row has the current `boot_id`, the session is dead. If it has an older `boot_id`, the session is
//! alive exactly until `t0 + ttl`, whichever process asks, and whenever: no client could send a heartbeat while the
//! server was down. Over an orderly stop the time may be shorter than the TTL (see [`super::left`]).
//!
//! An old snapshot may still show the row of an ended session. That does not revive a session of this start, so its
//! slot can be reclaimed as soon as no row of the session is left. It would revive a session of an earlier start, which
//! therefore keeps its slot as a tombstone for one TTL after its end. A prepared end leaves its session frozen, in its
//! slot, until the prepared transaction has ended. If all slots are taken, sessions get [stand-ins](super::stand_in).

use super::block::{self, Block};
use super::databases::RESCAN;
use super::latch::{my_latch, set_latch};
use super::shared::Shared;
use super::slot::{PRIVATE, Slot, TOLD, TTL};
use super::standing::Standing;
use super::word::{FOREVER, State, Word};
use crate::pg::catalog::Home;
use crate::pg::{clock, transaction};
use pgrx::Uuid;
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

pub use super::slot::SlotRef;

impl Shared {
    /// Returns whether the slot is still that of the session. A slot's uuid is written before its living word; so this
    /// reads the word first, and the uuid after it. A write that relies on this answer must fail if the slot has
    /// changed hands since (see [`super::counted`]).
    pub(super) fn is_still(&self, at: SlotRef) -> bool {
        let slot = self.slot(at);
        slot.word().state() != State::Free && slot.session() == at.session
    }

    pub(super) fn slot(&self, at: SlotRef) -> &'static Slot {
        at.of_this_process().unwrap_or_else(|| &self.slots[at.index as usize])
    }

    pub fn used(&self) -> u32 {
        self.header.used.load(Ordering::Acquire)
    }

    /// Extends the deadline if the session lives. Returns how the session stands after that.
    pub fn beat(&self, at: SlotRef) -> Option<Standing> {
        if at.is_stand_in() {
            return self.look(at);
        }
        let (slot, now, before) = (self.slot(at), clock::now(), Cell::new(Word::default()));
        let beat = |word: Word| {
            before.set(word);
            word.beat(slot.cap(), now, slot.ttl())
        };
        let (word, extended) = slot.change(at.session, beat)?;
        let word = if extended { word } else { self.expire(slot, at.session, now)? };
        // If its opening was rolled back, the session counts as unknown.
        let mut standing = if word.is_erased() { None } else { self.standing_at(at, word, now) };
        if let Some(standing) = standing.as_mut().filter(|_| extended) {
            standing.late = before.get().late(now, slot.ttl());
        }
        standing
    }

    /// Returns how the session stands, and extends nothing. If the session is past its deadline, makes it dead.
    pub fn look(&self, at: SlotRef) -> Option<Standing> {
        let at = self.current(at);
        let (slot, now) = (self.slot(at), clock::now());
        let word = self.expire(slot, at.session, now)?;
        self.standing_at(at, word, now)
    }

    /// If the session is past its deadline, makes it dead. Returns the session's word after that.
    fn expire(&self, slot: &Slot, session: Uuid, now: u64) -> Option<Word> {
        let (word, taken) = slot.change(session, |word| word.expire(slot.cap(), now, slot.kept()))?;
        if taken && let Some(database) = self.known_database(slot.home().database) {
            // The sweep may be waiting to retry other dead sessions. This new one is looked at without waiting.
            database.blocked.hurry();
        }
        Some(word)
    }

    /// Freezes the session, since the commit of its early end is near: no heartbeat extends it any more.
    pub fn freeze(&self, at: SlotRef) {
        let at = self.current(at);
        let (slot, now) = (self.slot(at), clock::now());
        slot.change(at.session, |word| word.freeze(slot.cap(), now));
    }

    /// Lets a frozen session live on, since its early end does not happen. Returns whether the session was frozen.
    pub fn thaw(&self, at: SlotRef) -> bool {
        let at = self.current(at);
        self.slot(at).change(at.session, Word::thaw).is_some_and(|(_, thawed)| thawed)
    }

    /// Notes that a session has ended. The next call that finds no free slot then looks for one to reclaim, even if
    /// another call has just looked in vain.
    fn ended_one(&self) {
        if self.header.reclaim_at.load(Ordering::Relaxed) != 0 {
            self.header.reclaim_at.store(0, Ordering::Release);
        }
    }

    /// Ends the session, since its early end is committed. `gone`: no row of the session is left.
    pub fn end(&self, at: SlotRef, gone: bool) {
        let at = self.current(at);
        if at.is_stand_in() {
            // A stand-in is in no block of slots, so a rescan must bring the worker to the remaining rows.
            if let Some(database) = self.known_database(self.slot(at).home().database).filter(|_| !gone) {
                database.flag(RESCAN);
            }
            return;
        }
        let (slot, now) = (self.slot(at), clock::now());
        slot.change(at.session, |word| word.end(gone, now, slot.kept()));
        self.ended_one();
        if !gone {
            self.due_at(at, now);
        }
        self.notice(at);
    }

    /// Ends a session that only the transaction that opened it has ever seen. Such a session needs no tombstone.
    pub fn erase(&self, at: SlotRef) {
        self.slot(at).change(at.session, Word::erase);
        self.ended_one();
        self.notice(at);
    }

    /// Sets a deadline that heartbeats cannot move.
    pub fn cap(&self, at: SlotRef, deadline: u64) {
        let at = self.current(at);
        let sooner = |cap: u64| (deadline < cap).then_some(deadline);
        if self.slot(at).cap.change(|| self.is_still(at), sooner).is_some() {
            self.due_at(at, deadline);
        }
    }

    /// Raises the session's revision, since something that it holds or waits for has changed. Wakes the calls that wait
    /// for that.
    pub fn bump(&self, at: SlotRef) {
        let at = self.current(at);
        if self.slot(at).revision.change(|| self.is_still(at), |revision| Some(revision + 1)).is_some() {
            self.notice(at);
        }
    }

    /// Wakes calls of session_wait for this session.
    pub(super) fn notice(&self, at: SlotRef) {
        if at.is_stand_in() {
            return;
        }
        // SAFETY: one condition variable for each slot, initialised at start
        unsafe { pg_sys::ConditionVariableBroadcast(self.wait_of(at)) };
        // A listener is noted before it looks: it sees the news, or is seen here.
        fence(Ordering::SeqCst);
        set_latch(&self.listeners[at.index as usize]);
    }

    /// Lets news of the session wake this process from now on, or no more. News can wake one process at a time; another
    /// process that waits for the same session looks now and then.
    pub(super) fn listens(&self, at: SlotRef, begins: bool) {
        let Some(listener) = self.listeners.get(at.index as usize) else { return };
        if begins {
            listener.store(my_latch(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
        } else {
            listener.compare_exchange(my_latch(), std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).ok();
        }
    }

    pub(super) fn wait_of(&self, at: SlotRef) -> *mut pg_sys::ConditionVariable {
        // SAFETY: there are as many condition variables as slots
        unsafe { self.waits.add(at.index as usize) }
    }

    /// Returns the role to which the session belongs; `None` if the session no longer has the slot.
    pub fn role(&self, at: SlotRef) -> Option<u32> {
        let role = self.slot(at).role.load(Ordering::Acquire);
        self.is_still(at).then_some(role)
    }

    pub fn ttl_ms(&self, at: SlotRef) -> u32 {
        self.slot(at).ttl_ms.load(Ordering::Relaxed) & TTL
    }

    /// Notes that the log tells of the end of the session. Returns whether it had not told before.
    pub fn tell_of(&self, at: SlotRef) -> bool {
        self.is_still(at) && self.slot(at).ttl_ms.fetch_or(TOLD, Ordering::AcqRel) & TOLD == 0
    }

    /// Returns whether the session is private; false if the session no longer has the slot.
    pub fn is_private(&self, at: SlotRef) -> bool {
        let private = self.slot(at).ttl_ms.load(Ordering::Acquire) & PRIVATE != 0;
        private && self.is_still(at)
    }

    /// Returns whether the session keeps a lease for its grace.
    pub fn keeps_grace(&self, at: SlotRef) -> bool {
        self.is_private(at) && self.slot(self.current(at)).cap() != FOREVER
    }

    /// Returns whether the transaction that opened the session is still open, or prepared.
    pub fn being_opened(&self, at: SlotRef) -> bool {
        let xid = pg_sys::TransactionId::from(self.slot(at).opened_by.load(Ordering::Relaxed));
        // SAFETY: reads PostgreSQL's list of transactions
        xid != pg_sys::InvalidTransactionId && unsafe { pg_sys::TransactionIdIsInProgress(xid) }
    }

    /// Returns whether the opening of the session was committed, or is this transaction's; `None` while another
    /// transaction that opens the session is open or prepared.
    fn opening(&self, at: SlotRef) -> Option<bool> {
        // PostgreSQL's frozen id, which is older than all others.
        const COMMITTED: u32 = 2;
        let opened_by = &self.slot(self.current(at)).opened_by;
        let seen = opened_by.load(Ordering::Relaxed);
        if seen <= COMMITTED || transaction::is_mine(seen.into()) {
            return Some(true);
        }
        let outcome = transaction::outcome(seen);
        if outcome == Some(true) {
            // Later calls need not look: while an older transaction is open, a look goes through all processes.
            opened_by.compare_exchange(seen, COMMITTED, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
        outcome
    }

    /// Returns whether another transaction opens the session, and has not been committed.
    pub fn is_uncommitted(&self, at: SlotRef) -> bool {
        self.opening(at) != Some(true)
    }

    /// Returns whether this transaction opens the session.
    pub fn is_opened_here(&self, at: SlotRef) -> bool {
        transaction::is_mine(self.slot(self.current(at)).opened_by.load(Ordering::Relaxed).into())
    }

    /// Erases a session whose opening was rolled back. Returns whether it was. A transaction erases such a session
    /// itself, but a moment after its end; for a prepared transaction, the first call that finds its end does so.
    pub fn erase_rolled_back(&self, at: SlotRef) -> bool {
        let is_rolled_back = self.opening(at) == Some(false);
        if is_rolled_back {
            self.erase(at);
        }
        is_rolled_back
    }

    /// Notes that a session is due at `due`, which may be earlier than before. The caller has already written the
    /// reason to the slot.
    pub(super) fn due_at(&self, at: SlotRef, due: u64) {
        if at.is_stand_in() {
            return;
        }
        self.block_of(at).lower(due);
        self.anticipate(self.slot(at).home().database, due);
    }

    pub(super) fn block_of(&self, at: SlotRef) -> &'static Block {
        &self.blocks[at.index as usize / block::SLOTS]
    }

    /// Visits every slot in use, with its home and its word. Sessions that are past their deadline become dead.
    pub fn each(&self, now: u64, mut visit: impl FnMut(SlotRef, Home, Word)) {
        self.each_due(u64::MAX, now, |at, home, word, _| visit(at, home, word));
    }

    /// Visits the slots that are due by `by`, each with the time at which it is due. It also visits other slots of the
    /// same blocks. Returns whether slots in the blocks that it skipped become due later.
    pub fn each_due(&self, by: u64, now: u64, mut visit: impl FnMut(SlotRef, Home, Word, u64)) -> bool {
        block::before_look();
        let in_use = (self.used() as usize).div_ceil(block::SLOTS);
        let mut later = false;
        for (number, block) in self.blocks.iter().enumerate().take(in_use) {
            let bound = block.read();
            if bound.at() > by {
                later |= bound.at() < FOREVER;
                continue;
            }
            let mut earliest = FOREVER;
            let first = number * block::SLOTS;
            // Reads `used` only now: so it covers every slot for which the block's word has been lowered.
            for (index, slot) in (first as u32..self.used()).zip(&self.slots[first..]).take(block::SLOTS) {
                if slot.word().state() == State::Free {
                    continue;
                }
                let at = SlotRef { index, session: slot.session() };
                if let Some(word) = self.expire(slot, at.session, now) {
                    let due = self.due(at, word);
                    earliest = earliest.min(due);
                    visit(at, slot.home(), word, due);
                }
            }
            block.raise(bound, earliest);
        }
        later
    }

    /// Returns when a session with this word is due: at its deadline, or when it must be woken for work items. A dead
    /// session is due until it is gone.
    fn due(&self, at: SlotRef, word: Word) -> u64 {
        match word.state() {
            State::Alive | State::Frozen => word.at().min(self.slot(at).cap()).min(self.meal_of(at)),
            State::Dead => 0,
            State::Free | State::Gone => FOREVER,
        }
    }

    /// Gives sessions more time after a pause of the machine that began at `from`. A session that lived then could not
    /// send a heartbeat during the pause.
    pub fn postpone(&self, from: u64, gap: u64) {
        for index in 0..self.used() {
            let slot = &self.slots[index as usize];
            slot.change(slot.session(), |word| word.postpone(slot.cap(), from, gap));
        }
    }
}
