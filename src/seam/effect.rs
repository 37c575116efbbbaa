//! The effects of a note when its transaction ends. Each kind of note is a type of its own, with one impl of
//! [`Effect`].
//!
//! An ERROR in an effect would bring the server down. So effects only copy, change atomics and set latches.

use crate::pg::guard::Guard;
use crate::shmem::Shared;
use crate::shmem::databases::Database;
use crate::shmem::slots::SlotRef;
use std::collections::HashSet;

/// Where the effects of one transaction go.
#[derive(Clone, Copy)]
pub struct Memory {
    pub shared: &'static Shared,
    pub database: &'static Database,
    /// Whether this backend is a worker. It has judged what it commits, and tells listeners itself.
    pub worker: bool,
}

/// The effects of one kind of note. By default a note has no effect.
pub trait Effect {
    /// Returns whether the effect decides which sessions live, or lowers floors. Other notes wake sessions and the
    /// worker to look at that, so they take effect later.
    fn is_first(&self) -> bool {
        false
    }

    /// Returns the session to which this transaction may have granted something.
    fn gainer(&self) -> Option<SlotRef> {
        None
    }

    /// Returns whether a transaction with this note can be prepared.
    fn can_be_prepared(&self) -> bool {
        true
    }

    /// Takes effect before the commit, and before a PREPARE.
    fn before_end(&self, _: &Memory) {}

    /// Adds the locks that mark this transaction for as long as it is prepared, even after a restart.
    fn before_prepare(&self, _: &mut HashSet<Guard>) {}

    /// Takes effect at PREPARE. No note can do so when the prepared transaction ends, by a commit or a rollback.
    fn at_prepare(&self, _: &Memory) {}

    /// Returns whether the end of the transaction may make work items free.
    fn may_feed(&self) -> bool {
        false
    }

    /// Takes effect when the changes of the transaction are visible. Returns whether the worker must look.
    fn at_commit(&self, _: &Memory) -> bool {
        false
    }

    /// Takes effect when the transaction, or the subtransaction of this note, is rolled back. Returns whether the
    /// worker must look.
    fn at_abort(&self, _: &Memory) -> bool {
        false
    }

    /// Merges a later note of the same subtransaction into this one if the two concern the same thing. Returns whether
    /// it did; then the later note is not added.
    fn absorb(&mut self, _: &Self) -> bool
    where
        Self: Sized,
    {
        false
    }
}
