//! What a pass has done, and what is left for the next one.

use crate::call::Call;
use crate::lease::candidate::Grant;
use crate::lease::row::Seat;
use crate::pg::clock;
use crate::shmem::dirty::Dirty;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What one pass has done.
#[derive(Default)]
pub struct Pass {
    /// Sessions whose last row has been taken away.
    pub ended: usize,
    pub handed_over: usize,
    /// Slots whose owner changed, in this pass, which knows what it has granted, or in a transaction that posted them.
    pub changed: BTreeMap<Seat, Option<Grant>>,
    /// Queues with work items that have become free for sessions that waited for them.
    pub items: HashSet<String>,
    /// Whether there is more to do at once.
    pub more: bool,
    /// Whether another transaction had something in hand, so that the next pass comes soon.
    pub blocked: bool,
    /// Whether the whole database has been looked through.
    pub looked_through: bool,
}

impl Pass {
    pub(super) fn has_granted(&mut self, granted: HashMap<Seat, Grant>) {
        self.changed.extend(granted.into_iter().map(|(seat, grant)| (seat, Some(grant))));
    }
}

/// Has what another transaction had in hand judged again. Returns false if there is no room to note it.
pub(super) fn come_back_to(call: &Call, busy: &HashSet<String>) -> bool {
    let now = clock::now();
    busy.iter().fold(true, |noted, resource| {
        let dirty = Dirty { resource: resource.clone(), changed: None, backoff_ms: 0, items: false };
        call.shared.post_retry(call.database, &dirty, now) && noted
    })
}
