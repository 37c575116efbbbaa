//! Notes about sessions: which live, and whose revision grows.

use super::effect::{Effect, Memory};
use crate::pg::guard::Guard;
use crate::shmem::databases::RESCAN;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use std::collections::HashSet;

/// A session that this transaction opens.
pub struct Opened {
    pub session: SlotRef,
    /// Whether the session ends with this backend. Then the transaction cannot be prepared.
    pub attached: bool,
}

impl Effect for Opened {
    fn is_first(&self) -> bool {
        true
    }

    fn gainer(&self) -> Option<SlotRef> {
        Some(self.session)
    }

    fn can_be_prepared(&self) -> bool {
        !self.attached
    }

    fn before_prepare(&self, marks: &mut HashSet<Guard>) {
        marks.insert(Guard::Promised(self.session.session()));
    }

    fn at_prepare(&self, memory: &Memory) {
        memory.shared.unproven_while_prepared(self.session);
    }

    /// Asks for a rescan of the database if the session is dead already. A living session needs no rescan: the worker
    /// comes at its deadline.
    fn at_commit(&self, memory: &Memory) -> bool {
        let alive = memory.shared.look(self.session).is_some_and(|standing| standing.alive());
        if !alive {
            // The session expired while its transaction was open. A sweep may have come before its row was visible.
            memory.database.flag(RESCAN);
        }
        !alive
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        memory.shared.erase(self.session);
        true
    }
}

/// What an ending session leaves behind.
pub enum Left {
    Rows,
    /// No row is left, but other transactions have seen the session.
    Tombstone,
    /// The transaction that ends the session has opened it.
    Nothing,
}

/// A session that this transaction ends.
pub struct Ended {
    pub session: SlotRef,
    pub left: Left,
}

impl Effect for Ended {
    fn is_first(&self) -> bool {
        true
    }

    fn before_end(&self, memory: &Memory) {
        memory.shared.freeze(self.session);
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        match self.left {
            Left::Rows => memory.shared.end(self.session, false),
            Left::Tombstone => memory.shared.end(self.session, true),
            Left::Nothing => memory.shared.erase(self.session),
        }
        matches!(self.left, Left::Rows)
    }

    /// Lets the session live on. It was skipped while it was frozen: the resources that it waits for may have been
    /// judged without it.
    fn at_abort(&self, memory: &Memory) -> bool {
        if memory.shared.thaw(self.session) {
            memory.database.flag(RESCAN);
        }
        true
    }
}

/// A session whose holdings or waits this transaction changes.
pub struct Revision {
    pub session: SlotRef,
}

impl Effect for Revision {
    fn gainer(&self) -> Option<SlotRef> {
        Some(self.session)
    }

    fn before_prepare(&self, marks: &mut HashSet<Guard>) {
        marks.insert(Guard::Promised(self.session.session()));
    }

    fn at_prepare(&self, memory: &Memory) {
        memory.shared.unproven_while_prepared(self.session);
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        memory.shared.bump(self.session);
        false
    }

    fn absorb(&mut self, other: &Self) -> bool {
        self.session == other.session
    }
}

/// Dead sessions from which this transaction has taken something.
pub struct TakenFrom {
    pub sessions: HashSet<Uuid>,
}

impl Effect for TakenFrom {
    fn before_prepare(&self, marks: &mut HashSet<Guard>) {
        marks.extend(self.sessions.iter().map(|session| Guard::Taken(*session)));
    }
}
