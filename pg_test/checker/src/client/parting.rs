//! How a client releases a lease, works on during a take-over, and asks on two connections at a time.

use super::worker::{Holding, Worker};
use crate::caller::{Connection, Failure};
use crate::history::{Answer, Call, Verb};
use crate::workload::RESOURCES;
use rand::RngExt;
use std::time::Duration;
use tokio::time::sleep;

impl Worker {
    /// Releases the lease, usually in a statement of its own, sometimes in a transaction that is prepared or rolled
    /// back.
    pub(super) async fn let_go(&mut self, holding: &Holding) -> Result<(), Failure> {
        if self.chance(12) {
            return self.let_go_with_grace(holding).await;
        }
        if !self.chance(6) {
            return self.about(Verb::Release, &holding.resource, Some(holding.fence)).await.map(drop);
        }
        self.begin("BEGIN").await?;
        self.about(Verb::Release, &holding.resource, Some(holding.fence)).await?;
        let end = match self.random.random_range(0..3) {
            0 => self.prepare().await,
            1 => self.call(Call { verb: Verb::Rollback, ..Call::default() }).await.map(drop),
            _ => self.call(Call { verb: Verb::Commit, ..Call::default() }).await.map(drop),
        };
        end?;
        self.tx = None;
        Ok(())
    }

    /// Releases with grace: the lease goes on alone under its fence. The client finishes under it, takes the lease
    /// back, or lets it lapse.
    async fn let_go_with_grace(&mut self, holding: &Holding) -> Result<(), Failure> {
        let grace = self.random.random_range(100..1_500);
        let (resource, fence) = (Some(holding.resource.clone()), Some(holding.fence));
        let ask = Call { verb: Verb::Grace, resource, fence, ttl_ms: Some(grace), ..Call::default() };
        if self.call(ask).await?.done != Some(true) {
            return Ok(());
        }
        sleep(Duration::from_millis(self.random.random_range(0..grace))).await;
        match self.random.random_range(0..3) {
            0 => self.write(holding, false).await?,
            1 if self.ask_twice(&holding.resource).await?.fence == fence => {
                self.write(holding, false).await?;
            }
            _ => return Ok(()),
        }
        self.about(Verb::Release, &holding.resource, fence).await.map(drop)
    }

    /// Works on under the lease, with grace or without, while another process takes over.
    pub(super) async fn part(&mut self, holding: &Holding) -> Result<(), Failure> {
        if self.random.random_range(0..3) > 0 {
            let (resource, fence) = (Some(holding.resource.clone()), Some(holding.fence));
            self.call(Call { verb: Verb::Grace, resource, fence, ttl_ms: Some(2_000), ..Call::default() }).await?;
        }
        for _ in 0..4 {
            self.write(holding, false).await?;
        }
        self.parting = false;
        Ok(())
    }

    /// Asks for every resource that the former process may have had. Asks twice, as that process may still be at work.
    pub(super) async fn ask_for_all(&mut self) -> Result<(), Failure> {
        let mut held = Vec::new();
        for (resource, _) in RESOURCES.iter().chain(&RESOURCES) {
            let Some(session) = self.session.as_ref().map(|session| session.id.clone()) else { return Ok(()) };
            let resource = (*resource).to_owned();
            let ask = (Some(session.clone()), Some(resource.clone()));
            let answer = self.call(Call { verb: Verb::Acquire, session: ask.0, resource: ask.1, ..Call::default() });
            let Answer { fence: Some(fence), slot, .. } = answer.await? else { continue };
            if held.iter().all(|holding: &Holding| holding.resource != resource) {
                held.push(Holding { resource, slot: slot.unwrap_or(0), fence, session });
            }
        }
        for holding in held {
            self.use_up(holding).await?;
        }
        Ok(())
    }

    /// Asks on two connections at a time. Returns the answer with a grant, if there is one.
    pub(super) async fn ask_twice(&mut self, resource: &str) -> Result<Answer, Failure> {
        let second = Connection::open(&self.config).await?;
        self.connected().await?;
        let Some(first) = &self.connection else { return Err(Failure::lost()) };
        let session = self.session.as_ref().map(|session| session.id.clone());
        let ask = Call { verb: Verb::Acquire, session, resource: Some(resource.into()), ..Call::default() };
        let (one, other) =
            tokio::join!(self.caller.call(&first.client, ask.clone()), self.caller.call(&second.client, ask));
        let (one, other) = (one?, other?);
        Ok(if other.fence.is_some() { other } else { one })
    }
}
