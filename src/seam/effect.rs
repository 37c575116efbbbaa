//! What a note does when its transaction ends. Each kind of note is a type of its own, with one impl of [`Effect`].
//!
//! An effect runs where an ERROR would bring the server down, so it only copies, changes atomics and sets latches.

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
    /// Whether this backend is a worker, which has judged what it commits and tells listeners itself.
    pub worker: bool,
}

/// What becomes of one kind of note. Where a kind does not say, nothing.
pub trait Effect {
    /// Returns whether it says which sessions live, or lowers floors. Other notes wake sessions and the worker to look
    /// at that, so they come later.
    fn is_first(&self) -> bool {
        false
    }

    /// The session that this transaction may have granted something.
    fn gainer(&self) -> Option<SlotRef> {
        None
    }

    /// Returns whether a transaction with this note can be prepared.
    fn can_be_prepared(&self) -> bool {
        true
    }

    /// Before the commit, and before a prepare.
    fn before_end(&self, _: &Memory) {}

    /// Adds what must be known of this transaction for as long as it is prepared, also after a restart.
    fn before_prepare(&self, _: &mut HashSet<Guard>) {}

    /// Says now what cannot be told later: the transaction may be committed, or not.
    fn at_prepare(&self, _: &Memory) {}

    /// What the transaction did is visible. Returns whether the worker must look.
    fn at_commit(&self, _: &Memory) -> bool {
        false
    }

    /// The transaction, or the subtransaction of this note, is rolled back. Returns whether the worker must look.
    fn at_abort(&self, _: &Memory) -> bool {
        false
    }

    /// Returns whether this says what a later note of the same subtransaction does. Where it says less, it is made
    /// to say both.
    fn absorb(&mut self, _: &Self) -> bool
    where
        Self: Sized,
    {
        false
    }
}
