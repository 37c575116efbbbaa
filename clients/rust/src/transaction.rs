//! Transactions of the work under a fence, and how their commits end.

use crate::error::{BoxError, Error};
use crate::keeper::timed_out;
use crate::line::{self, Arg};
use crate::scope::Scope;
use std::mem;
use tokio::time::sleep;
use tokio_postgres::{Client, Row, Transaction};

pub(crate) const CHECK: &str = "SELECT eskit_lease.fence_check($1, $2::bigint)";

impl Scope {
    /// Runs `work` in a transaction on a connection of yours: begins, checks the fence, and commits. If the scope ends,
    /// `work` is dropped. Fails with [`Error::Lost`], [`Error::Refused`], [`Error::Unsure`], or as `work` does.
    pub async fn transaction<T, F>(&self, client: &mut Client, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    {
        let guarded = async |tx: &mut Transaction<'_>| {
            self.guard(tx).await?;
            work(tx).await
        };
        self.commit(client, guarded).await
    }

    /// Checks the fence in a transaction of yours. Call it before you read what the writes depend on. If the answer to
    /// COMMIT is lost, call [`unsure`](Scope::unsure). A connection that is in no transaction does not compile:
    ///
    /// ```compile_fail,E0308
    /// async fn guard(lead: eskit_lease::Lead, client: tokio_postgres::Client) {
    ///     lead.guard(&client).await;
    /// }
    /// ```
    pub async fn guard(&self, tx: &Transaction<'_>) -> Result<(), Error> {
        self.query(tx, CHECK, &[&self.name(), &self.fence()]).await.map(drop)
    }

    /// Makes a call in a transaction that checks the fence, or relies on it.
    pub(crate) async fn query(&self, tx: &Transaction<'_>, sql: &str, args: &[Arg<'_>]) -> Result<Row, Error> {
        self.check()?;
        let rows = line::query(tx, sql, args).await.map_err(|error| self.judge(error))?;
        rows.into_iter().next().ok_or_else(Error::lost)
    }

    /// Runs a transaction: begins, does the work, commits, and tells how the commit ended.
    pub(crate) async fn commit<T, F>(&self, client: &mut Client, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, BoxError>,
    {
        self.check()?;
        let mut tx = self.unless_over(client.transaction()).await??;
        let value = self.unless_over(work(&mut tx)).await?.map_err(|error| self.judge(error.into()))?;
        self.check()?;
        let unsure = self.over.clone().drop_guard();
        let patience = async {
            self.over.cancelled().await;
            sleep(self.leases.keeper.settings.ttl / 2).await;
        };
        let answer = tokio::select! {
            // If the work has caught an error of the server, COMMIT would say nothing and roll back; but the SELECT
            // fails.
            answer = tx.batch_execute("SELECT; COMMIT") => answer.map_err(Error::from),
            () = patience => Err(timed_out()),
        };
        match answer {
            Err(error) if error.of_server().is_none() => Err(self.judge(error.unsure())),
            answer => {
                unsure.disarm();
                answer.map_err(|error| self.judge(error))?;
                mem::forget(tx); // its Drop would roll back
                Ok(value)
            }
        }
    }

    /// Waits for a step, until the scope ends.
    pub(crate) async fn unless_over<T>(&self, step: impl Future<Output = T>) -> Result<T, Error> {
        self.over.run_until_cancelled(step).await.ok_or_else(|| self.judge(Error::lost()))
    }

    /// Refuses a scope that has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_trusted() { Ok(()) } else { Err(self.judge(Error::lost())) }
    }

    /// Says what an error is about. LF001 is for good, so it ends the scope.
    pub(crate) fn judge(&self, error: Error) -> Error {
        if error.of_server() == Some("LF001") {
            self.over.cancel();
        }
        error.of(self.name(), self.fence())
    }
}
