//! What a program opens: its keeper, and the verbs that are at work on it.

use crate::error::{BoxError, Error, State};
use crate::keeper::{Keeper, timed_out};
use crate::settings::Builder;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{sync::Arc, time::Duration, time::Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio::{signal, time::sleep, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a verb rests that is refused as its session is no member of the group.
const NO_MEMBER: Duration = Duration::from_secs(1);

/// A process's keeper: one session with one heartbeat. Clones share it. It closes in the background when all clones and
/// all scopes are dropped; [`close`](Leases::close) also waits for that.
#[derive(Clone)]
pub struct Leases {
    pub(crate) keeper: Arc<Keeper>,
    _open: Arc<DropGuard>,
}

impl Builder {
    /// Opens the keeper, and waits until its first session is trusted. Fails with the error of the last try.
    pub async fn open(self) -> Result<Leases, Error> {
        if self.takeover && self.name.is_none() {
            return Err(Error::Misuse("takeover needs a name, which no other process has"));
        }
        let (patience, open) = (self.patience, CancellationToken::new());
        let keeper = Keeper::start(self, open.clone())?;
        let leases = Leases { keeper: keeper.clone(), _open: Arc::new(open.drop_guard()) };
        let opened = async {
            keeper.trusted(&keeper.stop).await?;
            keeper.watch().await
        };
        let error = match timeout(patience, opened).await {
            Ok(Ok(())) => return Ok(leases),
            Ok(Err(error)) => error,
            Err(_) => keeper.last_error().unwrap_or_else(timed_out),
        };
        leases.close().await;
        Err(error)
    }
}

impl Leases {
    /// Begins with a connection string, as of libpq; its environment variables stand for what the string leaves out.
    /// TLS is by `sslmode`: `require` or `verify-full`, with `sslrootcert` or else the system's roots.
    pub fn builder(dsn: &str) -> Builder {
        Builder::with_dsn(dsn)
    }

    /// Returns the consumer's name, by default the host, the process id and a random part.
    pub fn name(&self) -> &str {
        &self.keeper.name
    }

    /// Returns the present state.
    pub fn state(&self) -> State {
        self.keeper.now().0
    }

    /// Returns the session's handle; None if there is no session. Keep it private.
    pub fn session(&self) -> Option<String> {
        self.keeper.now().1
    }

    /// Returns when the trust in the session ends, unless the server is heard again before.
    pub fn trusted_until(&self) -> Instant {
        self.keeper.now().2
    }

    /// Drains: nothing new begins, and each scope is told to end. When all have ended, or after `within`, when the rest
    /// is cancelled, the session is closed; also if this future is dropped.
    pub async fn drain(&self, within: Duration) {
        let keeper = self.keeper.clone();
        let _ = self.keeper.runtime.spawn(async move { keeper.drain(within).await }).await;
    }

    /// Cancels all scopes, waits for their work, and closes the session: within the TTL, whatever the network does. If
    /// the server cannot be reached, the session ends with its TTL. Goes on if this future is dropped.
    pub async fn close(&self) {
        let _ = self.keeper.runtime.spawn(self.keeper.clone().close()).await;
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

    /// Starts a verb as a task, which a drain waits for. It ends when its token is cancelled.
    pub(crate) fn start<F>(&self, verb: impl FnOnce(CancellationToken) -> F) -> Running
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let end = CancellationToken::new();
        let task = self.keeper.work.spawn_on(verb(end.clone()), &self.keeper.runtime);
        Running { task, end: end.drop_guard() }
    }
}

/// A verb at work in the background. Await it for its end: by a drain, by [`close`](Leases::close), or by an error.
/// Drop it to stop it.
#[must_use = "the verb stops when this is dropped"]
pub struct Running {
    task: JoinHandle<Result<(), Error>>,
    end: DropGuard,
}

impl Running {
    /// Stops the verb: nothing new begins. Waits until what has begun has ended.
    pub async fn stop(self) -> Result<(), Error> {
        drop(self.end);
        self.task.await.unwrap_or_else(|panic| Err(Error::Other(panic.into())))
    }
}

impl Future for Running {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(context).map(|done| done.unwrap_or_else(|panic| Err(Error::Other(panic.into()))))
    }
}

/// A verb that follows what a session gets, session after session.
pub(crate) trait Verb: Send + Sized + 'static {
    /// Works until the session ends, or the verb must end.
    fn follow(&mut self, end: &CancellationToken) -> impl Future<Output = Result<(), Error>> + Send;

    /// Ends what it has begun.
    fn leave(&mut self) -> impl Future<Output = ()> + Send;

    fn run(mut self, leases: &Leases, of: &'static str, name: &str) -> Running {
        let (keeper, turn) = (leases.keeper.clone(), leases.keeper.turn(of, name));
        leases.start(|end| async move {
            let Ok(_turn) = keeper.until(&end, turn.lock_owned()).await else {
                return Ok(());
            };
            let done = loop {
                match self.follow(&end).await {
                    Err(Error::Lost(_)) => (),
                    Err(Error::Closed) => break Ok(()),
                    Err(error) if error.of_server() == Some("55000") => sleep(NO_MEMBER).await,
                    done => break done,
                }
            };
            self.leave().await;
            done
        })
    }
}

/// Runs a function of the user in a task of its own, until the scope ends.
pub(crate) async fn run<W>(over: &CancellationToken, work: W) -> Result<(), Error>
where
    W: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let mut task = JoinSet::new();
    if !over.is_cancelled() {
        task.spawn(work);
    }
    let ended = over.run_until_cancelled(task.join_next()).await.flatten();
    task.shutdown().await;
    Ok(ended.ok_or_else(Error::lost)?.map_err(|panic| Error::Other(panic.into()))??)
}
