//! The settings of a keeper.

use crate::error::{BoxError, Error, State};
use crate::line::Connect;
use std::hash::{BuildHasher, RandomState};
use std::{env, fs, process, time::Duration};
use tokio_postgres::Client;

/// What the keeper itself needs.
pub(crate) struct Settings {
    pub name: Option<String>,
    pub ttl: Duration,
    pub takeover: bool,
    pub watch: Option<String>,
    pub on_state: Option<Box<dyn Fn(State) + Send + Sync>>,
}

/// The settings of a keeper. `open` opens it.
#[must_use]
pub struct Builder {
    pub(crate) connect: Result<Connect, Error>,
    pub(crate) settings: Settings,
    pub(crate) patience: Duration,
}

impl Builder {
    /// Begins with a function that makes each connection of the keeper: for tokens that expire, or for TLS of your own.
    /// It returns what [`tokio_postgres::connect`] does, a client and the future that drives it.
    pub fn with_connect<C, D, E>(connect: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        C: Future<Output = Result<(Client, D), E>> + Send + 'static,
        D: Future + Send + 'static,
        E: Into<BoxError>,
    {
        Builder::new(Ok(Box::new(move |_| {
            let connected = connect();
            Box::pin(async move {
                let (client, driver) = connected.await.map_err(E::into)?;
                Ok((client, Box::pin(async { drop(driver.await) }) as _))
            })
        })))
    }

    pub(crate) fn new(connect: Result<Connect, Error>) -> Self {
        let seconds = Duration::from_secs(30);
        let settings = Settings { name: None, ttl: seconds, takeover: false, watch: None, on_state: None };
        Builder { connect, settings, patience: seconds }
    }

    /// The consumer's name, which answers and views show; by default the host, the process id and a random part.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// How long the session outlives a process that is gone or cut off; 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Whether the first session takes over from the living ones of the same `name`, which no other process may have;
    /// false by default.
    pub fn takeover(mut self, takeover: bool) -> Self {
        self.settings.takeover = takeover;
        self
    }

    /// A table of events, whose positions come from `position_next`: new ones are [`news`](crate::Scope::news).
    pub fn watch(mut self, table: impl Into<String>) -> Self {
        self.settings.watch = Some(table.into());
        self
    }

    /// How long `open` waits for a session that is trusted; 30 s by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A function that is told each new state. It must not block.
    pub fn on_state(mut self, told: impl Fn(State) + Send + Sync + 'static) -> Self {
        self.settings.on_state = Some(Box::new(told));
        self
    }
}

pub(crate) fn default_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| env::var("HOSTNAME")).unwrap_or_default();
    format!("{}-{}-{:08x}", host.trim(), process::id(), RandomState::new().hash_one(()) as u32)
}
