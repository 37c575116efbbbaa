//! The work of a client under a lease: what the client writes, and how it ends the work.

use super::worker::{Holding, Phase, Worker};
use crate::caller::Failure;
use crate::history::{Call, Verb};
use crate::workload::LOCK;
use rand::RngExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

impl Worker {
    /// Works under a lease. Lets go of it in one of several ways, or keeps it.
    pub(super) async fn use_up(&mut self, holding: Holding) -> Result<(), Failure> {
        self.parting = self.told_to_part.swap(false, Ordering::Relaxed);
        if self.parting {
            return self.part(&holding).await;
        }
        let forgetful = self.chance(6);
        if forgetful {
            // The client stops its heartbeats and works on. The session expires.
            self.forget();
        }
        for _ in 0..self.random.random_range(1..4) {
            let work = if forgetful {
                self.session.as_ref().map_or(0, |session| session.ttl_ms * 11 / 20)
            } else {
                self.random.random_range(0..15)
            };
            sleep(Duration::from_millis(work)).await;
            let prepare = self.chance(6);
            self.write(&holding, prepare).await?;
            if self.random.random_range(0..3) == 0
                && self.about(Verb::Renew, &holding.resource, Some(holding.fence)).await?.held == Some(false)
            {
                break;
            }
        }
        self.remember();
        match self.random.random_range(0..100) {
            0..80 => self.let_go(&holding).await,
            80..88 => {
                let Some(session) = self.session.take() else { return Ok(()) };
                self.forget();
                let drain = self.chance(30);
                if drain {
                    self.call(Call { verb: Verb::Drain, session: Some(session.id.clone()), ..Call::default() }).await?;
                }
                self.call(Call { verb: Verb::Close, session: Some(session.id), ..Call::default() }).await.map(drop)
            }
            // The client keeps the lease until it asks for it again or its session ends.
            _ => Ok(()),
        }
    }

    /// Prepares the transaction, or commits it in the calm: the nemesis ends no prepared transaction then.
    pub(super) async fn prepare(&mut self) -> Result<(), Failure> {
        if self.phase() > Phase::Storm {
            return self.call(Call { verb: Verb::Commit, ..Call::default() }).await.map(drop);
        }
        let gid = format!("{} {}", self.caller.name, self.count);
        self.call(Call { verb: Verb::Prepare, gid: Some(gid), ..Call::default() }).await?;
        Ok(())
    }

    /// Runs a fenced transaction that leaves an element in the set.
    pub(super) async fn write(&mut self, holding: &Holding, prepare: bool) -> Result<(), Failure> {
        let strict = self.chance(20);
        self.begin(if strict { "BEGIN ISOLATION LEVEL REPEATABLE READ" } else { "BEGIN" }).await?;
        self.about(Verb::Check, &holding.resource, Some(holding.fence)).await?;
        if self.parting || self.chance(40) {
            let most = if self.parting { 400 } else { 10 };
            sleep(Duration::from_millis(self.random.random_range(0..most))).await;
        }
        let element = format!("{} {}", self.caller.name, self.count);
        let Holding { resource, slot, fence, session } = holding;
        self.call(Call {
            verb: Verb::Write,
            resource: Some(resource.clone()),
            slot: Some(*slot),
            fence: Some(*fence),
            session: Some(session.clone()),
            element: Some(element),
            ..Call::default()
        })
        .await?;
        if prepare {
            self.prepare().await?;
        } else {
            let verb = if self.chance(8) { Verb::Rollback } else { Verb::Commit };
            self.call(Call { verb, ..Call::default() }).await?;
        }
        self.tx = None;
        Ok(())
    }

    /// Takes a lock without a session of the client's own, works under it, and releases it or lets it expire.
    pub(super) async fn lock(&mut self) -> Result<(), Failure> {
        let request =
            format!("{:08x}-0000-4000-8000-{:012x}", self.random.random::<u32>(), self.random.random::<u64>() >> 16);
        let ask = Call {
            verb: Verb::Lock,
            resource: Some(LOCK.into()),
            consumer: Some(self.consumer.clone()),
            session: Some(request.clone()),
            ttl_ms: Some(500),
            ..Call::default()
        };
        let mut answer = self.call(ask.clone()).await?;
        if answer.fence.is_some() && self.chance(20) {
            answer = self.call(ask).await?;
        }
        let Some(fence) = answer.fence else { return Ok(()) };
        let holding = Holding { resource: LOCK.into(), slot: 0, fence, session: request };
        for _ in 0..self.random.random_range(1..4) {
            self.write(&holding, false).await?;
            self.about(Verb::Renew, LOCK, Some(fence)).await?;
        }
        if self.random.random_range(0..4) > 0 {
            self.about(Verb::Release, LOCK, Some(fence)).await?;
        }
        Ok(())
    }
}
