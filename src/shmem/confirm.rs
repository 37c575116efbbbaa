//! Confirmation: how far a server vouches for its sessions while it cannot know whether it still is the primary.
//!
//! A primary may be cut off from all but some of its clients. It goes on answering their heartbeats, while a standby is
//! promoted and in the end gives their leases to others. With `eskit_lease.confirm_interval` set, the old primary stops
//! vouching in time:
//!
//! * A **confirmation** is a record of WAL that the synchronous standbys have acknowledged. Its *start* is what counts:
//!   the time before the record was made. At that time no standby whose acknowledgement is needed had been promoted,
//!   because a standby stops acknowledging before it is promoted.
//! * No answer lets a session trust itself beyond the start of the last acknowledged confirmation plus its own TTL. A
//!   promoted server lets every session that it finds live for its whole TTL from the end of its recovery. That end is
//!   later than any start that the server has acknowledged. So the session has stopped trusting itself before its
//!   leases can be given away. The setting bounds only what clients are told: deadlines, expiry and fences are as
//!   without it.
//! * A promoted server cannot know of a **grant that it has not received**, and gives that lease away at once. So only
//!   what is acknowledged after a grant vouches for it. Usually that is the grant's own commit. If the commit did not
//!   wait, or its wait was cancelled (PostgreSQL then warns, and commits all the same), the sessions to which it
//!   granted something are *unproven*. They stay so until a confirmation that began later is acknowledged. While the
//!   granting transaction is open its own answers vouch for nothing (see [`crate::session::Touch`]). A prepared
//!   transaction makes its sessions unproven until it is known to have ended; a guard names these sessions, even after
//!   a restart. All other sessions that are found after a restart are unproven as well: a prepared transaction that had
//!   granted to them may have ended since.
//!
//! "Acknowledged" is never inferred from a wait that has ended. It is read where PostgreSQL keeps it: the position up
//! to which the synchronous standbys have flushed. So three things acknowledge nothing: a cancelled wait, a dying
//! process, and the time after a start in which commits do not wait yet (older minor versions of PostgreSQL). The flush
//! is enough, whatever `synchronous_commit` asks for: a standby that is promoted replays all that it has flushed.
//!
//! If `synchronous_standby_names` is empty there is no standby to ask, by the operator's decision. Grants then count at
//! once, and the launcher itself confirms once per interval, without another process. A new start of shared memory has
//! no confirmation, so an isolated primary cannot vouch again after a restart.
//!
//! The promise holds while the clocks run, and if every standby that may be promoted must acknowledge. A machine whose
//! `CLOCK_BOOTTIME` stops with it (a virtual one, paused by its host) does not know how late it is. A client relies on
//! a grant only after an answer that it asked for after the grant. The moment between the end of a cancelled wait and
//! the note of this end is too short for such an answer. With the setting off a heartbeat pays two plain reads for all
//! this.

use super::counted::Counted;
use super::shared::Shared;
use super::slot::SlotRef;
use super::word::FOREVER;
use crate::base::settings;
use crate::pg::clock;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns whether confirmations are made, by the setting as this process has last read it.
pub fn is_on() -> bool {
    settings::CONFIRM_INTERVAL.get() > 0
}

/// Returns whether the settings name a standby to ask.
pub fn has_synchronous_standbys() -> bool {
    // SAFETY: null, or the text of a setting
    unsafe { !pg_sys::SyncRepStandbyNames.is_null() && *pg_sys::SyncRepStandbyNames != 0 }
}

/// Returns whether the synchronous standbys have flushed the WAL up to a position; true if there are none.
pub fn is_acknowledged(lsn: u64) -> bool {
    if !has_synchronous_standbys() {
        return true;
    }
    let mode = pg_sys::SYNC_REP_WAIT_FLUSH as usize;
    // SAFETY: made with shared memory, and never moved. The position only grows, and is written whole. Read without
    // SyncRepLock it may be an older one, which acknowledges less.
    let flushed = unsafe { AtomicU64::from_ptr(&raw mut (*pg_sys::WalSndCtl).lsn[mode]) };
    flushed.load(Ordering::Acquire) >= lsn
}

/// Returns whether the standbys may lack this transaction, which has just been committed. The caller asks even while
/// the setting is off: when the setting is switched on again, a confirmation from an earlier time may still count.
pub fn committed_alone() -> bool {
    // SAFETY: a plain read
    !is_acknowledged(unsafe { pg_sys::XactLastCommitEnd })
}

impl Shared {
    /// Notes whether confirmations are made. The launcher calls this when it has read the setting.
    pub fn set_confirming(&self) {
        self.header.confirming.store(is_on(), Ordering::Release);
    }

    /// Returns whether confirmations bound the trust that this server grants to sessions. A statement that began before
    /// the setting was switched on reads no settings; so the launcher's note counts as well.
    pub fn is_confirming(&self) -> bool {
        is_on() || self.header.confirming.load(Ordering::Acquire)
    }

    /// Notes that a confirmation that began at `start` is acknowledged.
    pub fn confirm(&self, start: u64) {
        self.header.confirmed.fetch_max(start, Ordering::AcqRel);
    }

    /// Returns when the last acknowledged confirmation began.
    pub fn confirmed(&self) -> Option<u64> {
        Some(self.header.confirmed.load(Ordering::Acquire)).filter(|start| *start != 0)
    }

    /// Changes the time since which a session is unproven.
    fn change_unproven(&self, at: SlotRef, step: impl Fn(u64) -> u64) {
        let at = self.current(at);
        if let Some(unproven) = self.unproven.get(at.index as usize) {
            unproven.change(|| self.is_still(at), |since| Some(step(since)));
        }
    }

    /// Notes that only this server knows what was granted to a session: a confirmation that begins from now on must
    /// prove it.
    pub fn unproven(&self, at: SlotRef) {
        let now = clock::now();
        self.change_unproven(at, |since| since.max(now));
    }

    /// Notes that a grant to a session will be committed or rolled back at an unknown time.
    pub fn unproven_while_prepared(&self, at: SlotRef) {
        self.change_unproven(at, |_| FOREVER);
    }

    /// Returns whether a prepared transaction may still grant to the session.
    pub fn is_promised(&self, at: SlotRef) -> bool {
        let at = self.current(at);
        let since = self.unproven.get(at.index as usize).map(Counted::get);
        self.is_still(at) && since == Some(FOREVER)
    }

    /// Returns since when a session that is found after a start is unproven. `promised`: a transaction that is prepared
    /// now grants to it. If the server has no room for prepared transactions, none can have ended since the start.
    pub fn unproven_when_found(&self, promised: bool) -> u64 {
        match self.pending.len() {
            ..=1 => 0,
            _ if promised => FOREVER,
            _ => clock::now(),
        }
    }

    /// Notes that all prepared transactions that grant to the session have ended, and may have been committed without
    /// the standbys. The caller makes sure that no other one is being prepared.
    pub fn unproven_since_prepared(&self, at: SlotRef) {
        let now = clock::now();
        self.change_unproven(at, |_| now);
    }

    /// Returns until when a session may be told to trust itself, whatever its deadline. `index` is that of its slot;
    /// nothing vouches for the grants of a session without a slot.
    pub(super) fn vouched_until(&self, index: Option<u32>, ttl: u64) -> u64 {
        if !self.is_confirming() {
            return FOREVER;
        }
        let unproven = index.map_or(FOREVER, |index| self.unproven[index as usize].get());
        self.confirmed().filter(|start| *start > unproven).map_or(0, |start| start + ttl)
    }
}
