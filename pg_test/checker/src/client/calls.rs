//! The calls of a client and the trouble that it makes for itself; the ends of its connection and of its session.

use super::worker::{Phase, Session, Worker};
use crate::caller::{Connection, Failure};
use crate::history::{Answer, Call, Verb};
use crate::workload::TTLS;
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::time::Duration;
use tokio::time::sleep;

impl Worker {
    pub(super) async fn connected(&mut self) -> Result<(), Failure> {
        if self.connection.is_none() {
            let connection = Connection::open(&self.config).await?;
            connection.client.batch_execute("SET lock_timeout = '4s'").await?;
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Opens a transaction block.
    pub(super) async fn begin(&mut self, how: &str) -> Result<(), Failure> {
        self.connected().await?;
        self.count += 1;
        self.tx = Some(self.count);
        let Some(connection) = &self.connection else { return Err(Failure::lost()) };
        Ok(connection.client.batch_execute(how).await?)
    }

    pub(super) async fn call(&mut self, call: Call) -> Result<Answer, Failure> {
        self.connected().await?;
        let call = Call { tx: self.tx, ..call };
        let hurry = self.tx.is_none() && call.verb != Verb::Open && self.chance(4);
        let patience = self.chance(2).then(|| Duration::from_micros(self.random.random_range(0..3_000)));
        let timeout = self.random.random_range(1..12);
        let Some(connection) = &self.connection else { return Err(Failure::lost()) };
        if hurry {
            connection.client.batch_execute(&format!("SET statement_timeout = '{timeout}ms'")).await?;
        }
        let result = match patience {
            None => self.caller.call(&connection.client, call).await,
            Some(patience) => {
                tokio::select! {
                    result = self.caller.call(&connection.client, call) => result,
                    () = sleep(patience) => {
                        self.caller.begin(Call { verb: Verb::Hangup, ..Call::default() });
                        if let Some(connection) = self.connection.take() { connection.hang_up() }
                        return Err(Failure::lost());
                    }
                }
            }
        };
        if hurry && let Some(connection) = &self.connection {
            connection.client.batch_execute("RESET statement_timeout").await?;
        }
        result
    }

    /// Makes a call about a resource, in the name of the session.
    pub(super) async fn about(&mut self, verb: Verb, resource: &str, fence: Option<i64>) -> Result<Answer, Failure> {
        let session = self.session.as_ref().map(|session| session.id.clone());
        let session = session.filter(|_| matches!(verb, Verb::Acquire | Verb::Cancel));
        let queue = verb == Verb::Acquire && (self.phase() > Phase::Storm || self.random.random_range(0..100) < 85);
        self.call(Call { verb, session, resource: Some(resource.into()), fence, queue, ..Call::default() }).await
    }

    /// Recovers from a failure: ends the open transaction block, and drops a lost connection.
    pub(super) async fn recover(&mut self, failure: Failure) {
        let open = self.tx.is_some();
        if open
            && !failure.is_lost()
            && self.connection.as_ref().is_some_and(|connection| !connection.client.is_closed())
        {
            drop(self.call(Call { verb: Verb::Rollback, ..Call::default() }).await);
        }
        self.tx = None;
        let lost = self.connection.as_ref().is_none_or(|connection| connection.client.is_closed());
        if lost {
            self.connection = None;
            if self.session.as_ref().is_some_and(|session| session.attached) {
                self.lose_session();
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) fn forget(&self) {
        self.set_beating(None);
    }

    pub(super) fn remember(&self) {
        self.set_beating(self.session.clone());
    }

    fn set_beating(&self, session: Option<Session>) {
        if let Ok(mut beating) = self.beating.lock() {
            *beating = session;
        }
    }

    pub(super) fn lose_session(&mut self) {
        self.session = None;
        self.forget();
    }

    /// Opens a session if there is none.
    pub(super) async fn open(&mut self) -> Result<(), Failure> {
        if self.session.is_some() {
            return Ok(());
        }
        let ttl_ms = *TTLS.choose(&mut self.random).unwrap_or(&1_000);
        let (attached, takeover) = (self.random.random_range(0..100) < 30, std::mem::take(&mut self.takeover));
        let consumer = Some(self.consumer.clone());
        let ttl = Some(ttl_ms);
        let open = Call { verb: Verb::Open, consumer, ttl_ms: ttl, attach: attached, takeover, ..Call::default() };
        let opened = self.call(open).await?;
        let (Some(id), Some(revision)) = (opened.session, opened.revision) else { return Err(Failure::lost()) };
        self.session = Some(Session { id, ttl_ms, attached, revision });
        self.remember();
        Ok(())
    }
}
