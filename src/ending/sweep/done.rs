//! The result of a pass, and the resources that it leaves for the next one.

use crate::call::Call;
use crate::lease::candidate::Grant;
use crate::lease::row::Seat;
use crate::pg::clock;
use crate::shmem::dirty::Dirty;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The result of one pass.
#[derive(Default)]
pub struct Pass {
    /// The number of sessions whose last row was deleted.
    pub ended: usize,
    pub handed_over: usize,
    /// Slots whose owner changed: in this pass, with the grant if there was one, or in a transaction that posted them.
    pub changed: BTreeMap<Seat, Option<Grant>>,
    /// Queues whose work items have become free for sessions that waited for them.
    pub items: HashSet<String>,
    /// Whether there is more to do at once.
    pub more: bool,
    /// Whether another transaction stood in the way; the next pass then comes soon.
    pub blocked: bool,
    /// Whether the pass has looked through the whole database.
    pub looked_through: bool,
}

impl Pass {
    pub(super) fn has_granted(&mut self, granted: HashMap<Seat, Grant>) {
        self.changed.extend(granted.into_iter().map(|(seat, grant)| (seat, Some(grant))));
    }
}

/// Posts resources that another transaction was changing to the ring, to be judged again. Returns false if the ring has
/// no room.
pub(super) fn come_back_to(call: &Call, busy: &HashSet<String>) -> bool {
    let now = clock::now();
    busy.iter().fold(true, |noted, resource| {
        let dirty = Dirty { resource: resource.clone(), changed: None, backoff_ms: 0, since: now, items: false };
        call.shared.post_retry(call.database, &dirty, now) && noted
    })
}
