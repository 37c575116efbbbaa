//! What all verbs have: they look again at each ask of the keeper, and they have tasks, until they are stopped.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::{Leases, Trusted, log};
use crate::line::BoxFuture;
use crate::scope::Scope;
use std::{collections::HashMap, mem, pin::Pin, sync::Arc, task::Context, task::Poll, time::Duration};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// A verb at work in the background. Await it for its end: by a drain, by [`close`](Leases::close), or by an error.
/// Drop it to stop it.
#[must_use = "the verb stops when this is dropped"]
pub struct Running {
    task: JoinHandle<Result<(), Error>>,
    pub(crate) end: Option<DropGuard>,
}

impl Running {
    /// Stops the verb: nothing new begins. Waits until what has begun has ended.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.end = None;
        self.await
    }
}

impl Future for Running {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(context).map(|done| done.unwrap_or_else(|panic| Err(Error::Other(panic.into()))))
    }
}

/// Waits for the end of the verb that has the name before.
pub(crate) type Turn = BoxFuture<OwnedMutexGuard<()>>;

/// A verb at work.
pub(crate) struct Verb {
    pub leases: Leases,
    pub end: CancellationToken, // nothing new may begin: the keeper drains, or the caller wants no more
    pub begun: HashMap<i64, Arc<Scope>>, // what has a task: partitions, or items
    pub asks: watch::Receiver<u64>,
    pub patience: Duration, // until the next look, if no ask comes before
    pub waits: bool,        // looks again after a refusal, or an error that passes
    pub tasks: JoinSet<i64>,
}

/// A verb that follows what the session has.
pub(crate) trait Look: Send {
    /// Looks what the session has now.
    fn look(&mut self, verb: &mut Verb, at: &Trusted) -> impl Future<Output = Result<(), Error>> + Send;

    /// Leaves, when all tasks have ended.
    fn leave(&self, leases: &Leases) -> impl Future<Output = ()> + Send;
}

impl Verb {
    pub fn new(leases: &Leases) -> Self {
        let (end, mut asks) = (leases.keeper.stop.child_token(), leases.keeper.asks.subscribe());
        asks.mark_changed(); // the first look is at once
        let (leases, begun, tasks) = (leases.clone(), HashMap::new(), JoinSet::new());
        Verb { leases, end, begun, tasks, asks, patience: Duration::MAX, waits: true }
    }

    /// Starts the verb as a task, which a drain waits for, when its turn has come.
    pub fn start(self, turn: Turn, run: impl FnOnce(Verb) -> BoxFuture<Result<(), Error>> + Send + 'static) -> Running {
        let (keeper, end, guard) = (self.leases.keeper.clone(), self.end.clone(), self.end.clone().drop_guard());
        let task = async move {
            let Some(_turn) = end.run_until_cancelled(turn).await else {
                return Ok(());
            };
            run(self).await
        };
        Running { task: keeper.work.spawn_on(task, &keeper.runtime), end: Some(guard) }
    }

    /// Waits until there may be something new, and until the session is trusted: at first, then after each ask and the
    /// end of each task. Fails with [`Error::Closed`] when the verb must end.
    pub async fn next(&mut self) -> Result<Trusted, Error> {
        loop {
            tokio::select! {
                biased;
                () = self.end.cancelled() => return Err(Error::Closed),
                Some(Ok(key)) = self.tasks.join_next() => drop(self.begun.remove(&key)),
                _ = timeout(mem::replace(&mut self.patience, Duration::MAX), self.asks.changed()) => (),
            }
            while let Some(Ok(key)) = self.tasks.try_join_next() {
                self.begun.remove(&key);
            }
            if let Some(at) = self.leases.trusted() {
                return Ok(at);
            }
        }
    }

    /// Looks each time, until the verb must end. Then waits for the tasks.
    pub async fn follow(mut self, mut what: impl Look) -> Result<(), Error> {
        let ended = loop {
            if let Err(error) = self.look(&mut what).await {
                break error;
            }
        };
        self.begun.values().for_each(|scope| scope.token.cancel());
        while self.tasks.join_next().await.is_some() {}
        what.leave(&self.leases).await;
        if matches!(ended, Error::Closed) { Ok(()) } else { Err(ended) }
    }

    /// Makes a call about a name when the session is trusted, and again after an error that passes.
    pub async fn call(&mut self, sql: &str, name: &str) -> Result<(Trusted, Vec<Row>), Error> {
        loop {
            let at = self.next().await?;
            match self.leases.call(&at.session, sql, &[&name, &at.session]).await {
                Ok(rows) => return Ok((at, rows)),
                Err(error) => self.passes(error)?,
            }
        }
    }

    async fn look(&mut self, what: &mut impl Look) -> Result<(), Error> {
        let at = self.next().await?;
        what.look(self, &at).await.or_else(|error| self.passes(error))
    }

    /// Looks again after an error that passes, or of a session that has ended. Fails with any other.
    fn passes(&mut self, error: Error) -> Result<(), Error> {
        // 55000: not now, as the session has no slot, or is not yet a member of the queue's group.
        let passes = matches!(error, Error::Lost(_)) || error.passes() || error.of_server() == Some("55000");
        if !passes || !self.waits {
            return Err(error);
        }
        log!(warn, "eskit_lease {}: looks again: {}", self.leases.name(), with_causes(&error));
        self.patience = RETRY;
        Ok(())
    }

    /// Starts the task of a partition, or of an item.
    pub fn begin(&mut self, key: i64, scope: Arc<Scope>, task: impl Future<Output = ()> + Send + 'static) {
        self.begun.insert(key, scope);
        self.tasks.spawn(async move {
            task.await;
            key
        });
    }
}

impl Scope {
    /// Runs a function of the user in a task of its own, as it may panic, until the scope ends.
    pub(crate) async fn run(&self, work: BoxFuture<Result<(), BoxError>>) -> Result<(), Error> {
        let ended = tokio::spawn(self.over.clone().run_until_cancelled_owned(work)).await;
        Ok(ended.map_err(|panic| Error::Other(panic.into()))?.ok_or_else(Error::lost)??)
    }
}
