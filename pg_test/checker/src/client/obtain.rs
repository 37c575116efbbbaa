//! Asking for a resource, and waiting for it.

use super::worker::{Holding, Phase, Worker};
use crate::caller::Failure;
use crate::history::{Answer, Call, Verb};
use crate::workload::{QUIET, SPARE};
use rand::RngExt;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Worker {
    /// Asks for a resource, and waits if the server queues the session.
    pub(super) async fn obtain(&mut self, resource: &str, patience: Duration) -> Result<Option<Holding>, Failure> {
        let until = Instant::now() + patience;
        if resource == QUIET {
            // Skips earlier changes, so that only later ones make the client ask again.
            self.hears_news(resource).await?;
        }
        loop {
            let storm = self.phase() == Phase::Storm;
            // The transaction stays open for a while after queueing, so that it crosses releases.
            let crossing = resource == QUIET && !storm;
            let answer = if crossing || self.chance(5) {
                self.acquire_in_block(resource).await?
            } else if resource == SPARE && self.chance(60) {
                self.ask_twice(resource).await?
            } else {
                self.about(Verb::Acquire, resource, None).await?
            };
            let Some(session) = self.session.as_ref().map(|session| session.id.clone()) else { return Ok(None) };
            match (answer.fence, answer.reason.as_deref()) {
                (Some(fence), _) => {
                    let slot = answer.slot.unwrap_or(0);
                    return Ok(Some(Holding { resource: resource.into(), slot, fence, session }));
                }
                (_, Some("queued")) => (),
                (_, Some("expired" | "unknown_session" | "draining")) => {
                    self.lose_session();
                    return Ok(None);
                }
                _ => return Ok(None),
            }
            while !self.hears_news(resource).await? {
                let over = self.phase() == Phase::Leave || (storm && self.phase() > Phase::Storm);
                if Instant::now() > until || over || self.session.is_none() {
                    if self.session.is_some() && self.chance(30) {
                        self.about(Verb::Cancel, resource, None).await?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Waits a while for the session's revision to grow.
    pub(super) async fn hears_news(&mut self, resource: &str) -> Result<bool, Failure> {
        let Some(session) = &self.session else { return Ok(false) };
        let (session, revision) = (Some(session.id.clone()), session.revision);
        let verb = if resource == QUIET { Verb::Heartbeat } else { Verb::Wait };
        let answer = self.call(Call { verb, session, revision: Some(revision), ..Call::default() }).await?;
        if answer.alive == Some(false) && answer.reason.as_deref() != Some("closing") {
            self.lose_session();
            return Ok(false);
        }
        let news = answer.revision.is_some_and(|now| now > revision);
        if let (Some(session), Some(now)) = (&mut self.session, answer.revision) {
            session.revision = now;
        }
        if !news && (verb == Verb::Heartbeat || answer.reason.as_deref() != Some("heartbeat")) {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(news)
    }

    /// Acquires within a transaction block, and sometimes rolls it back.
    pub(super) async fn acquire_in_block(&mut self, resource: &str) -> Result<Answer, Failure> {
        self.begin("BEGIN").await?;
        let answer = self.about(Verb::Acquire, resource, None).await?;
        sleep(Duration::from_millis(self.random.random_range(0..10))).await;
        let keep = !self.chance(50);
        let verb = if keep { Verb::Commit } else { Verb::Rollback };
        self.call(Call { verb, ..Call::default() }).await?;
        self.tx = None;
        Ok(if keep { answer } else { Answer { reason: Some("busy".into()), ..Answer::default() } })
    }
}
