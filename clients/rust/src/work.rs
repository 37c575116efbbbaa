//! `work`: the items of a queue.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::{Leases, Trusted, log};
use crate::line::BoxFuture;
use crate::scope::Scope;
use crate::verb::{Look, Running, Verb};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use tokio_postgres::{Client, Row, Transaction};

const CLAIM: &str = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.item_claim($1, $2::uuid, $3::int)";
pub(crate) const DONE: &str = "SELECT eskit_lease.item_done(ARRAY[$1::bigint], $2::bigint)";
const FAIL: &str = "SELECT eskit_lease.item_fail($2::bigint, $3::bigint, $1)";
const UNCLAIM: &str = "SELECT eskit_lease.item_unclaim(ARRAY[$1::bigint], $2::bigint)";
const RECOVER: &str = "SELECT eskit_lease.item_unclaim(array_agg(id), fence) FROM eskit_lease.items WHERE queue = $1 \
                       AND session = $2::uuid AND state = 'claimed' AND id <> ALL ($3::bigint[]) GROUP BY fence";
const MOST: usize = 1_000; // items of one claim

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
    pub(crate) scope: Arc<Scope>,
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
            self.scope.query(tx, DONE, &[&self.id, &self.scope.fence()]).await?;
            Ok(value)
        };
        let value = self.scope.commit(client, finishing).await?;
        self.done.store(true, Relaxed);
        Ok(value)
    }
}

impl Leases {
    /// Claims items of a queue, and calls `work` for each, in tasks of their own, at most `concurrency` at once. It does
    /// what it writes in [`Item::transaction`]. If it fails, the item is tried again, as its queue says.
    pub fn work<W>(&self, queue: &str, concurrency: usize, work: impl Fn(Item) -> W + Send + Sync + 'static) -> Running
    where
        W: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let handler = Arc::new(move |item| Box::pin(work(item)) as _);
        let worker = Worker { queue: queue.to_owned(), concurrency, handler };
        Verb::new(self).start(Box::pin(self.turn("work", queue).lock_owned()), |verb| Box::pin(verb.follow(worker)))
    }
}

type Handler = dyn Fn(Item) -> BoxFuture<Result<(), BoxError>> + Send + Sync;

struct Worker {
    queue: String,
    concurrency: usize,
    handler: Arc<Handler>,
}

impl Look for Worker {
    /// Claims as many items as there are free handlers.
    async fn look(&mut self, verb: &mut Verb, at: &Trusted) -> Result<(), Error> {
        let leases = &verb.leases;
        let free = self.concurrency.saturating_sub(verb.begun.len()).min(MOST);
        if free == 0 {
            return Ok(());
        }
        let claimed = leases.call_once(&at.session, CLAIM, &[&self.queue, &at.session, &free]).await;
        if claimed.as_ref().is_err_and(Error::is_answer_lost) {
            self.recover(verb, &at.session).await?;
        }
        for row in claimed? {
            self.begin(verb, at, &row)?;
        }
        Ok(())
    }

    async fn leave(&self, _: &Leases) {}
}

impl Worker {
    fn begin(&self, verb: &mut Verb, at: &Trusted, row: &Row) -> Result<(), Error> {
        let (id, scope) = (row.try_get(0)?, Scope::new(&verb.leases, &self.queue, at, row.try_get(4)?));
        let (key, payload, attempt, done) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, Arc::default());
        let item = Item { id, key, payload, attempt, scope: scope.clone(), done };
        let (handler, done, may_begin) = (self.handler.clone(), item.done.clone(), !verb.end.is_cancelled());
        verb.begin(id, scope.clone(), async move {
            let (leases, fence) = (&scope.leases, scope.fence());
            if !may_begin || scope.over.is_cancelled() {
                let _ = leases.give_back(scope.session(), UNCLAIM, &[&id, &fence]).await;
                return;
            }
            let error = match scope.run(Box::pin(async move { handler(item).await })).await {
                Ok(()) if done.load(Relaxed) => return,
                Ok(()) => "the handler ended without its item's transaction".to_owned(),
                Err(error) => with_causes(&error),
            };
            log!(warn, "eskit_lease: item {id} has failed: {error}");
            leases.fail(scope.session(), FAIL, &error, &[&id, &fence]).await;
        });
        Ok(())
    }

    /// Gives back what a claim without an answer may have got. A role that may not read the view can only end the
    /// session.
    async fn recover(&self, verb: &Verb, session: &str) -> Result<(), Error> {
        let leases = &verb.leases;
        let begun = verb.begun.keys().map(i64::to_string).collect::<Vec<_>>().join(",");
        match leases.call(session, RECOVER, &[&self.queue, &session, &format!("{{{begun}}}")]).await {
            Err(error) if error.of_server() == Some("42501") => {
                let why = "the answer of item_claim was lost, and only grant_monitor shows what it has claimed";
                log!(warn, "eskit_lease {}: opens another session: {why}", leases.name());
                leases.end_session(session).await
            }
            Err(Error::Refused(_)) => Ok(()), // another has ended the claim
            done => done.map(drop),
        }
    }
}
