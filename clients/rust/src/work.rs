//! `work`: the items of a queue.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::log;
use crate::leases::{Leases, Running, Verb, run};
use crate::line::BoxFuture;
use crate::scope::{Grant, Scope};
use std::collections::HashSet;
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::time::Duration;
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::{Client, Transaction};
use tokio_util::sync::CancellationToken;

const CLAIM: &str = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.item_claim($1, $2::uuid, $3::int)";
pub(crate) const DONE: &str = "SELECT eskit_lease.item_done(ARRAY[$1::bigint], $2::bigint)";
const BRIEF_PAUSE: Duration = Duration::from_secs(1); // after a refusal that passes
const MOST: usize = 1_000; // items of one claim
const UNCLAIM: &str = "SELECT eskit_lease.item_unclaim(ARRAY[$1::bigint], $2::bigint)";
const RECOVER: &str = "SELECT eskit_lease.item_unclaim(array_agg(id), fence) FROM eskit_lease.items WHERE queue = $1 \
                       AND session = $2::uuid AND state = 'claimed' AND id <> ALL ($3::bigint[]) GROUP BY fence";

/// A work item that this process has claimed.
#[non_exhaustive]
pub struct Item {
    /// Its permanent id.
    pub id: i64,
    /// Its key.
    pub key: Option<String>,
    /// Its payload, which is JSON.
    pub payload: String,
    /// How often it was claimed, from 1.
    pub attempt: i32,
    pub(crate) scope: Scope,
    pub(crate) done: Arc<AtomicBool>,
}

impl Item {
    /// Runs `work` in a transaction on a connection of yours, which also finishes the item. Fails as
    /// [`Scope::transaction`] does.
    pub async fn transaction<T, F>(&self, client: &mut Client, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    {
        let finishing = async |tx: &mut Transaction<'_>| {
            let value = work(tx).await?;
            let [id, fence] = [self.id, self.scope.fence()].map(|number| number.to_string());
            self.scope.query(tx, DONE, &[&id, &fence]).await?;
            Ok(value)
        };
        let value = self.scope.commit(client, finishing).await?;
        self.done.store(true, Relaxed);
        Ok(value)
    }
}

impl Leases {
    /// Claims items of a queue, and calls `handler` for each, in tasks of their own, at most `concurrency` at once. The
    /// handler does the item's work in [`Item::transaction`]. If it fails, the item is tried again, as its queue says.
    pub fn work<W>(
        &self,
        queue: &str,
        concurrency: usize,
        handler: impl Fn(Item) -> W + Send + Sync + 'static,
    ) -> Running
    where
        W: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let (leases, queue, handler) =
            (self.clone(), queue.to_owned(), Arc::new(move |item| Box::pin(handler(item)) as _));
        let (begun, handlers) = (HashSet::new(), JoinSet::new());
        Worker { leases, queue: queue.clone(), concurrency, handler, begun, handlers }.run(self, "work", &queue)
    }
}

type Handler = dyn Fn(Item) -> BoxFuture<Result<(), BoxError>> + Send + Sync;

struct Worker {
    leases: Leases,
    queue: String,
    concurrency: usize,
    handler: Arc<Handler>,
    begun: HashSet<i64>,    // the items that have a handler
    handlers: JoinSet<i64>, // end with the item's id
}

impl Verb for Worker {
    /// Claims as many items as there are free handlers, whenever there may be some.
    async fn follow(&mut self, end: &CancellationToken) -> Result<(), Error> {
        let keeper = self.leases.keeper.clone();
        let mut asks = keeper.asks.subscribe();
        loop {
            let (session, scopes) = keeper.trusted(end).await?;
            asks.borrow_and_update();
            self.claim(&session, &scopes, end).await?;
            tokio::select! {
                told = keeper.until(end, asks.changed()) => drop(told?),
                Some(Ok(id)) = self.handlers.join_next() => drop(self.begun.remove(&id)),
            }
            while let Some(Ok(id)) = self.handlers.try_join_next() {
                self.begun.remove(&id);
            }
        }
    }

    async fn leave(&mut self) {
        while self.handlers.join_next().await.is_some() {}
    }
}

impl Worker {
    async fn claim(&mut self, session: &str, scopes: &CancellationToken, end: &CancellationToken) -> Result<(), Error> {
        let keeper = self.leases.keeper.clone();
        let free = self.concurrency.saturating_sub(self.begun.len()).min(MOST);
        if free == 0 {
            return Ok(());
        }
        let rows = loop {
            match keeper.call_once(session, CLAIM, &[&self.queue, session, &free.to_string()]).await {
                Err(error) if !error.passes() => return Err(error),
                Err(error) if error.of_server().is_none() => self.recover(session).await?,
                Err(error) => {
                    log!(warn, "eskit_lease: the claim from {} has failed: {}", self.queue, with_causes(&error));
                    keeper.until(end, sleep(BRIEF_PAUSE)).await?;
                }
                Ok(rows) => break rows,
            }
        };
        let is_over = end.is_cancelled() || keeper.stop.is_cancelled();
        for row in rows {
            let (id, key, payload, attempt) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            let grant = Grant::new(session, row.try_get(4)?, scopes);
            if is_over {
                let [id, fence]: [String; 2] = [id, grant.fence].map(|number: i64| number.to_string());
                let _ = keeper.give_back(session, UNCLAIM, &[&id, &fence]).await;
                continue;
            }
            let (scope, done) = (Scope::new(&self.leases, &self.queue, &grant), Arc::default());
            self.begin(Item { id, key, payload, attempt, scope, done }, grant);
        }
        Ok(())
    }

    fn begin(&mut self, item: Item, grant: Grant) {
        let (keeper, handler) = (self.leases.keeper.clone(), self.handler.clone());
        let (id, done) = (item.id, item.done.clone());
        self.begun.insert(id);
        self.handlers.spawn(async move {
            if grant.over.is_cancelled() {
                let args = [&*id.to_string(), &grant.fence.to_string()];
                let _ = keeper.give_back(&grant.session, UNCLAIM, &args).await; // it has not begun
                return id;
            }
            let ended = run(&grant.over, async move { handler(item).await }).await;
            let error = match ended {
                Ok(()) if done.load(Relaxed) => return id,
                Ok(()) => Error::Misuse("the handler ended without its item's transaction"),
                Err(error) => error,
            };
            let error = with_causes(&error);
            log!(warn, "eskit_lease: item {id} has failed: {error}");
            let sql = "SELECT eskit_lease.item_fail($2::bigint, $3::bigint, $1)";
            keeper.fail(&grant.session, sql, &error, &[&id.to_string(), &grant.fence.to_string()]).await;
            id
        });
    }

    /// Gives back what a claim without an answer may have got. A role that may not read the view can only end the
    /// session.
    async fn recover(&self, session: &str) -> Result<(), Error> {
        sleep(Duration::from_millis(100)).await;
        let keeper = &self.leases.keeper;
        let begun = self.begun.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        match keeper.call(session, RECOVER, &[&self.queue, session, &format!("{{{begun}}}")]).await {
            Err(error) if error.of_server() == Some("42501") => {
                let why = "the answer of item_claim was lost, and only grant_monitor shows what it has claimed";
                log!(warn, "eskit_lease {}: opens another session: {why}", keeper.name);
                keeper.replace_session(session).await
            }
            Err(Error::Refused(_)) => Ok(()), // another has ended the claim
            done => done.map(drop),
        }
    }
}
