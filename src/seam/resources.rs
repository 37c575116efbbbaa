//! Notes about resources that the worker must judge again.

use super::effect::{Effect, Memory};
use crate::base::error::Result;
use crate::pg::clock;
use crate::shmem::Shared;
use crate::shmem::databases::RESCAN;
use crate::shmem::slots::SlotRef;
use pgrx::pg_sys::SubTransactionId;

/// What a transaction puts off until it commits. If this raises an ERROR, the COMMIT fails.
pub type Act = fn(&'static Shared, &str) -> Result<()>;

/// A resource that must be judged again. If this transaction commits, listeners are told of the slot `changed`.
pub struct Resource {
    pub name: String,
    pub changed: Option<i32>,
}

impl Effect for Resource {
    fn at_commit(&self, memory: &Memory) -> bool {
        if !memory.worker {
            memory.shared.post(memory.database, &self.name, self.changed);
        }
        true
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        memory.shared.post(memory.database, &self.name, None);
        true
    }
}

/// A resource that must be judged again at a time, if this transaction commits.
pub struct Later {
    pub name: String,
    pub at: u64,
}

impl Effect for Later {
    fn at_commit(&self, memory: &Memory) -> bool {
        memory.shared.post_at(memory.database, &self.name, self.at);
        true
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        memory.shared.post(memory.database, &self.name, None);
        true
    }
}

/// A resource that this transaction could not give to a session. The worker retries it soon, unless a retry is due
/// already.
pub struct InVain {
    pub name: String,
}

impl InVain {
    fn post(&self, memory: &Memory) -> bool {
        !memory.worker && memory.shared.post_in_vain(memory.database, &self.name, clock::now())
    }
}

impl Effect for InVain {
    fn at_commit(&self, memory: &Memory) -> bool {
        self.post(memory)
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        self.post(memory)
    }

    fn absorb(&mut self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// More resources than are noted must be judged again.
pub struct Many;

impl Effect for Many {
    fn at_commit(&self, memory: &Memory) -> bool {
        memory.database.flag(RESCAN);
        true
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        memory.database.flag(RESCAN);
        true
    }
}

/// An act that is done just before this transaction commits. The commit first takes it out of the notes.
pub struct AtCommit {
    pub name: String,
    pub act: Act,
}

impl Effect for AtCommit {
    fn absorb(&mut self, other: &Self) -> bool {
        self.name == other.name && std::ptr::fn_addr_eq(self.act, other.act)
    }
}

/// A check of a fence that this transaction has passed.
pub struct Pass {
    pub name: String,
    pub slot: i32,
    pub fence: i64,
    pub session: SlotRef,
    /// The subtransaction that has given the lease away, and so ended the pass.
    pub given_away: Option<SubTransactionId>,
}

impl Pass {
    /// Posts the lease if the worker must look at it. No other session could take the lease over while this transaction
    /// was open. But the lease's session may be dead by now, or may keep the lease for its grace.
    fn post_if_left(&self, memory: &Memory) -> bool {
        let alive = memory.shared.look(self.session).is_some_and(|standing| standing.alive());
        let left = !alive || memory.shared.keeps_grace(self.session);
        if left {
            memory.shared.post(memory.database, &self.name, None);
        }
        left
    }
}

impl Effect for Pass {
    fn at_commit(&self, memory: &Memory) -> bool {
        self.post_if_left(memory)
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        self.post_if_left(memory)
    }
}
