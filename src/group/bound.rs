//! What is bound to groups: queues of work items, which stand above this floor. They fill [`Bound`], and lib.rs
//! registers it.

use crate::base::error::Result;
use crate::call::Call;
use std::sync::OnceLock;

/// What a group asks of queues that are bound to it.
pub trait Bound: Sync {
    /// Refuses to drop a group that queues are bound to. The caller has deleted its declaration.
    fn require_unbound(&self, _: &Call, _group: &str) -> Result<()> {
        Ok(())
    }

    /// Returns whether queues of a group have items, apart from those that open transactions add.
    fn has_items(&self, _: &Call, _group: &str) -> bool {
        false
    }

    /// Refuses to resize a group whose queues have items, which would no longer be where their keys belong. The caller
    /// has changed its declaration.
    fn require_no_items(&self, _: &Call, _group: &str) -> Result<()> {
        Ok(())
    }
}

struct Nothing;

impl Bound for Nothing {}

static QUEUES: OnceLock<&'static dyn Bound> = OnceLock::new();

/// Registers the queues, once in a process or before it is forked.
pub fn register(queues: &'static dyn Bound) {
    QUEUES.get_or_init(|| queues);
}

/// The queues that are bound to groups.
pub fn queues() -> &'static dyn Bound {
    debug_assert!(QUEUES.get().is_some(), "_PG_init registers them");
    QUEUES.get().copied().unwrap_or(&Nothing)
}
