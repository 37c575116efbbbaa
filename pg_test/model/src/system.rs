//! The systems to explore: their sessions and clients, their steps, and which calls are cut into steps.

use crate::guards::Guard;
use crate::state::{ANY, Budget, CLIENTS, RESOURCES, SESSIONS};

#[derive(Clone, Copy, Debug)]
pub struct System {
    /// The guards that are taken out.
    pub without: &'static [Guard],
    pub sessions: usize,
    pub resources: usize,
    /// Client transactions at one time, and verbs in each.
    pub clients: usize,
    pub verbs: u8,
    /// Clients open the sessions, and may open new ones. Otherwise all sessions are there from the start.
    pub opening: bool,
    /// How often clients call verbs, transactions are prepared, and the server crashes.
    pub budget: Budget,
    pub fencing: bool,
    pub cancelling: bool,
    /// A process may make a session's slot from a row that it read long ago.
    pub reading: bool,
    /// Whether calls, ends of transactions and passes are cut into steps, with steps of others in between. Otherwise
    /// each is one step.
    pub calls_in_steps: bool,
    pub ends_in_steps: bool,
    pub passes_in_steps: bool,
    /// The number of resources for which the ring has room.
    pub ring_size: usize,
}

impl System {
    /// Everything at once.
    pub const WHOLE: System = System {
        without: &[],
        sessions: SESSIONS,
        resources: RESOURCES,
        clients: CLIENTS,
        verbs: 1,
        opening: false,
        budget: Budget { calls: ANY, prepares: ANY, crashes: ANY },
        fencing: true,
        cancelling: true,
        reading: true,
        calls_in_steps: false,
        ends_in_steps: false,
        passes_in_steps: false,
        ring_size: RESOURCES,
    };

    /// Returns whether a guard is in place.
    pub fn has(&self, guard: Guard) -> bool {
        !self.without.contains(&guard)
    }
}
