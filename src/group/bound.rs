//! Groups may have queues of work items bound to them. Queues are on a higher floor, so they implement [`Bound`], and
//! lib.rs registers them.

use crate::base::error::Result;
use crate::call::Call;
use std::sync::OnceLock;

/// The questions that a group asks about its queues.
pub trait Bound: Sync {
    /// Refuses to drop a group that has queues. The caller has deleted the declaration of the group.
    fn require_unbound(&self, _: &Call, _group: &str) -> Result<()> {
        Ok(())
    }

    /// Returns whether a queue of the group has items. An item does not count while another transaction is changing it.
    fn has_items(&self, _: &Call, _group: &str) -> bool {
        false
    }

    /// Refuses to resize a group whose queues have items: the partitions of their keys would change. The caller has
    /// changed the declaration of the group.
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

/// Returns the queues, as groups see them.
pub fn queues() -> &'static dyn Bound {
    debug_assert!(QUEUES.get().is_some(), "_PG_init registers them");
    QUEUES.get().copied().unwrap_or(&Nothing)
}
