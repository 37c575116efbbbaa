//! Confirmation: how far a server may vouch for its sessions when it cannot know whether it still is the primary.
//!
//! A primary that is cut off from all but some of its clients goes on answering their heartbeats, while a standby is
//! promoted and in the end gives their leases to others. With `eskit_lease.confirm_interval` set it stops vouching in
//! time:
//!
//! * A **confirmation** is a record of WAL that the synchronous standbys have acknowledged. What counts of it is its
//!   *start*, the time before the record was made: at that time no standby had been promoted that must acknowledge,
//!   because one that is being promoted stops to acknowledge first.
//! * No answer lets a session trust itself beyond the start of the last acknowledged confirmation plus its own TTL. A
//!   promoted server lets every session that it finds live for its whole TTL from the end of its recovery, which is
//!   later than any start that it has acknowledged. So the session has ceased to trust itself before what it holds can
//!   be given away. Deadlines, expiry and fences are as without the setting: it is only what is said that is bounded.
//! * A promoted server cannot know of a **grant that it has not received**, and gives that lease away at once. So a
//!   grant is vouched for only by what was acknowledged after it. Mostly that is its own commit. Where the commit did
//!   not wait, or its wait was cancelled (PostgreSQL then warns, and commits all the same), its sessions are *unproven*
//!   until a confirmation that has begun later. While the granting transaction is open its own answers vouch for
//!   nothing (see [`crate::session::Touch`]); and one that has been prepared makes its sessions unproven until it is
//!   known to have ended. A guard says which those are, over a restart too; the others are unproven when they are found
//!   after it, as one that had granted to them may have ended since.
//!
//! "Acknowledged" is never inferred from a wait that has ended, but read from where PostgreSQL keeps it: the position
//! up to which the synchronous standbys have flushed. So a cancelled wait, a dying process, and the time after a start
//! in which commits do not wait yet (older minor versions of PostgreSQL) acknowledge nothing. Flushed is enough,
//! whatever `synchronous_commit` asks for: a standby that is promoted replays all that it has flushed.
//!
//! Where `synchronous_standby_names` is empty there is no standby to ask, by the operator's decision. Grants then count
//! at once, and the launcher itself confirms once per interval, so that no process is needed for it. A new start of
//! shared memory has no confirmation, so that an isolated primary cannot vouch again by being restarted.
//!
//! The promise holds where every standby that may be promoted must acknowledge, for as long as the clocks run: one
//! machine that is stopped without its `CLOCK_BOOTTIME` counting on (a virtual one, paused by its host) does not know
//! how late it is. A client relies on what it was granted by an answer that it has asked for afterwards; the moment
//! between the end of a cancelled wait and the note that is taken of it is too short for that. With the setting off a
//! heartbeat pays two plain reads for all this.

use super::counted::Counted;
use super::shared::Shared;
use super::slot::SlotRef;
use super::word::FOREVER;
use crate::base::settings;
use crate::pg::clock;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns whether confirmations are made, by what this process has heard of the setting.
pub fn is_on() -> bool {
    settings::CONFIRM_INTERVAL.get() > 0
}

/// Returns whether the settings name a standby to ask.
pub fn has_synchronous_standbys() -> bool {
    // SAFETY: null, or the text of a setting
    unsafe { !pg_sys::SyncRepStandbyNames.is_null() && *pg_sys::SyncRepStandbyNames != 0 }
}

/// Returns whether the synchronous standbys have flushed the WAL up to a position: all that there are.
pub fn is_acknowledged(lsn: u64) -> bool {
    if !has_synchronous_standbys() {
        return true;
    }
    let mode = pg_sys::SYNC_REP_WAIT_FLUSH as usize;
    // SAFETY: made with shared memory, and never moved. The position only grows, and is written whole; an older one
    // that is read without SyncRepLock says less.
    let flushed = unsafe { AtomicU64::from_ptr(&raw mut (*pg_sys::WalSndCtl).lsn[mode]) };
    flushed.load(Ordering::Acquire) >= lsn
}

/// Returns whether this transaction, which has just been committed, is unknown to the standbys, as far as can be told.
/// The answer counts with the setting off, too: it may be switched on while a confirmation from the last time that it
/// was on still counts.
pub fn committed_alone() -> bool {
    // SAFETY: a plain read
    !is_acknowledged(unsafe { pg_sys::XactLastCommitEnd })
}

impl Shared {
    /// The launcher has heard whether confirmations are made.
    pub fn set_confirming(&self) {
        self.header.confirming.store(is_on(), Ordering::Release);
    }

    /// Returns whether what this server says of trust is bounded by confirmations: also in a statement that has gone on
    /// since before the setting was switched on, and hears of no reload.
    pub fn is_confirming(&self) -> bool {
        is_on() || self.header.confirming.load(Ordering::Acquire)
    }

    /// A confirmation that has begun at `start` is acknowledged.
    pub fn confirm(&self, start: u64) {
        self.header.confirmed.fetch_max(start, Ordering::AcqRel);
    }

    /// When the last acknowledged confirmation began.
    pub fn confirmed(&self) -> Option<u64> {
        Some(self.header.confirmed.load(Ordering::Acquire)).filter(|start| *start != 0)
    }

    /// Changes since when it takes a confirmation for what a session was granted.
    fn change_unproven(&self, at: SlotRef, step: impl Fn(u64) -> u64) {
        let at = self.current(at);
        if let Some(unproven) = self.unproven.get(at.index as usize) {
            unproven.change(|| self.is_still(at), |since| Some(step(since)));
        }
    }

    /// Only this server knows what was granted to a session: it takes a confirmation from now on.
    pub fn unproven(&self, at: SlotRef) {
        let now = clock::now();
        self.change_unproven(at, |since| since.max(now));
    }

    /// What is granted to a session is going to be committed, or not, at an unknown time.
    pub fn unproven_while_prepared(&self, at: SlotRef) {
        self.change_unproven(at, |_| FOREVER);
    }

    /// Returns whether that is so.
    pub fn is_promised(&self, at: SlotRef) -> bool {
        let at = self.current(at);
        let since = self.unproven.get(at.index as usize).map(Counted::get);
        self.is_still(at) && since == Some(FOREVER)
    }

    /// Since when it takes a confirmation for what a session was granted that is found after a start; `promised`: by
    /// transactions that are prepared now. Where there is no room for any, none can have ended since the start.
    pub fn unproven_when_found(&self, promised: bool) -> u64 {
        match self.pending.len() {
            ..=1 => 0,
            _ if promised => FOREVER,
            _ => clock::now(),
        }
    }

    /// All that was so has ended by now, and may have been committed alone. The caller has seen to it that nothing else
    /// is being prepared.
    pub fn unproven_since_prepared(&self, at: SlotRef) {
        let now = clock::now();
        self.change_unproven(at, |_| now);
    }

    /// Until when a session may be told to trust itself, whatever its deadline; `index`: of its slot, without which
    /// nothing is known of it.
    pub(super) fn vouched_until(&self, index: Option<u32>, ttl: u64) -> u64 {
        if !self.is_confirming() {
            return FOREVER;
        }
        let unproven = index.map_or(FOREVER, |index| self.unproven[index as usize].get());
        self.confirmed().filter(|start| *start > unproven).map_or(0, |start| start + ttl)
    }
}
