//! The systems that are explored: their sessions and clients, their steps, and which calls are cut into steps.

use crate::guards::Guard;
use crate::state::{ANY, Budget, CLIENTS, RESOURCES, SESSIONS};

#[derive(Clone, Copy, Debug)]
pub struct System {
    /// The guards that are taken out.
    pub without: &'static [Guard],
    pub sessions: usize,
    pub resources: usize,
    /// Transactions of clients at one time, and verbs in each.
    pub clients: usize,
    pub verbs: u8,
    /// Sessions are opened and may be opened anew; else all are there from the start.
    pub opening: bool,
    /// How often clients call verbs, transactions are prepared, and the server crashes.
    pub budget: Budget,
    pub fencing: bool,
    pub cancelling: bool,
    /// A session's slot may be made by a process that has read its row long ago.
    pub reading: bool,
    /// Which of these come to their end in many steps, with others' in between; else they are one step.
    pub calls_in_steps: bool,
    pub ends_in_steps: bool,
    pub passes_in_steps: bool,
    /// Resources that the ring has room for.
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

    /// Whether a guard is in place.
    pub fn has(&self, guard: Guard) -> bool {
        !self.without.contains(&guard)
    }
}
