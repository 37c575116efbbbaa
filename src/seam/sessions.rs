//! Notes about sessions: which live, and whose revision grows.

use super::effect::{Effect, Memory};
use crate::pg::guard::Guard;
use crate::shmem::databases::RESCAN;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use std::collections::HashSet;

/// Opened by this transaction.
pub struct Opened {
    pub session: SlotRef,
    /// It ends with this backend, so that the transaction cannot be prepared.
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

    /// For a session that lives there is nothing to do before its deadline, for which the worker comes anyhow.
    fn at_commit(&self, memory: &Memory) -> bool {
        let alive = memory.shared.look(self.session).is_some_and(|standing| standing.alive());
        if !alive {
            // Its time has passed while its transaction was open, so that it may have been swept before it had a row.
            memory.database.flag(RESCAN);
        }
        !alive
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        memory.shared.erase(self.session);
        true
    }
}

/// What a session leaves that ends.
pub enum Left {
    Rows,
    /// No row, but others have seen it.
    Tombstone,
    /// It was opened by the transaction that ends it.
    Nothing,
}

/// Ended by this transaction.
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

    /// While it was frozen it was passed over, and what it waits for may have been judged without it.
    fn at_abort(&self, memory: &Memory) -> bool {
        if memory.shared.thaw(self.session) {
            memory.database.flag(RESCAN);
        }
        true
    }
}

/// What the session holds or waits for changes.
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

/// This transaction has taken something from these sessions, which are dead.
pub struct TakenFrom {
    pub sessions: HashSet<Uuid>,
}

impl Effect for TakenFrom {
    fn before_prepare(&self, marks: &mut HashSet<Guard>) {
        marks.extend(self.sessions.iter().map(|session| Guard::Taken(*session)));
    }
}
