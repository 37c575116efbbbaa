//! The state of a client.

use crate::caller::{Caller, Connection};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_postgres::Config;

/// The phases that the client is told.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Phase {
    Storm,
    Calm,
    Leave,
}

/// The session of the client.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl_ms: u64,
    pub(super) attached: bool,
    /// The last revision that the client has acted upon.
    pub(super) revision: i64,
}

/// The session that the heartbeats keep alive. `None` if there is none, or if the client makes it expire.
pub(super) type Beating = Arc<Mutex<Option<Session>>>;

/// A lease that the client holds.
pub(super) struct Holding {
    pub(super) resource: String,
    pub(super) slot: i32,
    pub(super) fence: i64,
    pub(super) session: String,
}

/// The client at work.
pub(super) struct Worker {
    pub(super) caller: Arc<Caller>,
    pub(super) config: Config,
    pub(super) consumer: String,
    pub(super) takeover: bool,
    /// The client must still acquire everything that it may have inherited.
    pub(super) inherits: bool,
    /// Another process is about to take over.
    pub(super) told_to_part: Arc<AtomicBool>,
    /// The client works slowly, so that the other process takes over meanwhile.
    pub(super) parting: bool,
    pub(super) connection: Option<Connection>,
    pub(super) session: Option<Session>,
    pub(super) beating: Beating,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) random: ChaCha8Rng,
    /// The open transaction block.
    pub(super) tx: Option<u64>,
    pub(super) count: u64,
}

impl Worker {
    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.phase() == Phase::Storm && self.random.random_range(0..100) < percent
    }
}
