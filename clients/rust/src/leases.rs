//! What a program opens: its keeper.

use crate::connect;
use crate::error::Error;
use crate::keeper::{Leases, WATCH, timed_out};
use crate::settings::Builder;
use crate::verb::Verb;
use std::time::Duration;
use tokio::{signal, time::timeout};

impl Builder {
    /// Opens the keeper, and waits until its first session is trusted. Fails with the error of the last try.
    pub async fn open(self) -> Result<Leases, Error> {
        if self.settings.takeover && self.settings.name.is_none() {
            return Err(Error::Misuse("takeover needs a name, which no other process has"));
        }
        let leases = Leases::start(self.connect?, self.settings);
        let error = match timeout(self.patience, leases.opened()).await {
            Ok(Ok(())) => return Ok(leases),
            Ok(Err(error)) => error,
            Err(_) => leases.kept().error.take().unwrap_or_else(timed_out),
        };
        leases.close().await;
        Err(error)
    }
}

impl Leases {
    /// Begins with a connection string, as of libpq; its environment variables stand for what the string leaves out.
    /// TLS is by `sslmode`: `require` or `verify-full`, with `sslrootcert` or else the system's roots.
    pub fn builder(dsn: &str) -> Builder {
        Builder::new(connect::by_dsn(dsn))
    }

    /// Drains: nothing new begins, and each scope is told to end. When all have ended, or after `within`, when the rest
    /// is cancelled, the session is closed; also if this future is dropped.
    pub async fn drain(&self, within: Duration) {
        let _ = self.keeper.runtime.spawn(self.clone().end(within)).await;
    }

    /// Cancels all scopes, waits for their work, and closes the session: within the TTL, whatever the network does. If
    /// the server cannot be reached, the session ends with its TTL. Goes on if this future is dropped.
    pub async fn close(&self) {
        self.drain(Duration::ZERO).await;
    }

    /// Waits for SIGTERM or SIGINT, and then [drains](Leases::drain).
    pub async fn drain_on_signal(&self, within: Duration) {
        #[cfg(unix)]
        let terminated = async { signal::unix::signal(signal::unix::SignalKind::terminate()).ok()?.recv().await };
        #[cfg(not(unix))]
        let terminated = std::future::pending::<Option<()>>();
        tokio::select! {
            Some(()) = terminated => (),
            Ok(()) = signal::ctrl_c() => (),
        }
        self.drain(within).await;
    }

    /// Waits until the first session is trusted, and watches the table: only this fails if it cannot.
    async fn opened(&self) -> Result<(), Error> {
        let mut verb = Verb::new(self);
        match &self.keeper.settings.watch {
            Some(table) => verb.call(WATCH, table).await.map(drop),
            None => verb.next().await.map(drop),
        }
    }
}
