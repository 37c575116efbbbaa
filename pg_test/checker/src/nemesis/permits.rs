//! Faults of semaphores.

use super::Nemesis;
use crate::caller::Failure;
use crate::history::{Answer, Call, Verb, now};
use crate::workload::{CREW, MOST, POOL};
use rand::RngExt;
use std::time::Duration;
use tokio::time::sleep;

/// Times to live in milliseconds. The session that dies must still be alive by its row after a crash. `TTL` is that of
/// the next session.
const DYING_TTL: u64 = 1_000;
const TTL: u64 = 4_000;

impl Nemesis {
    pub(super) async fn resize_by_chance(&mut self) {
        let permits = self.random.random_range(1..=MOST);
        self.resize(POOL, permits).await;
    }

    /// Repeats a resize until it succeeds, and ends prepared transactions, which may be in the way. The history has one
    /// call from the first try to the last, as any of the tries may have resized.
    async fn resize(&mut self, semaphore: &str, permits: i32) {
        let from = now();
        let resize = format!("SELECT eskit_lease.semaphore_resize('{semaphore}', {permits})");
        while self.rows("SET lock_timeout = '500ms'").await.is_err() || self.rows(&resize).await.is_err() {
            drop(self.resolve().await);
            sleep(Duration::from_millis(50)).await;
        }
        let (resource, permits) = (Some(semaphore.to_owned()), Some(permits));
        let number = self.caller.begin(Call { verb: Verb::Resize, from, resource, permits, ..Call::default() });
        self.caller.end(number, &Ok(Answer { done: Some(true), ..Answer::default() }));
    }

    /// Shrinks a semaphore with two holders to one permit. The first holder releases; the other one, in the slot
    /// beyond, dies. The next session gets the permit because the dead session counts as gone. A crash would revive the
    /// dead session, unless a row tells of its death.
    pub(super) async fn shrink(&mut self) -> Result<(), Failure> {
        self.resize(CREW, 2).await;
        let mut holders = Vec::new();
        for _ in 0..2 {
            let session = self.open(DYING_TTL).await?;
            let answer = self.acquire(&session).await?;
            holders.push((answer.slot, answer.fence, session));
        }
        holders.sort();
        let next = self.open(TTL).await?;
        self.worker(false).await;
        self.resize(CREW, 1).await;
        let resource = Some(CREW.to_owned());
        self.call(Call { verb: Verb::Release, resource: resource.clone(), fence: holders[0].1, ..Call::default() })
            .await?;
        sleep(Duration::from_millis(DYING_TTL + self.random.random_range(50..200))).await;
        self.acquire(&next).await?;
        self.crash().await?;
        // The server that is shutting down must not answer the next call.
        sleep(Duration::from_millis(100)).await;
        self.worker(true).await;
        let (_, fence, dying) = holders.swap_remove(1);
        self.call(Call { verb: Verb::Heartbeat, session: Some(dying), ..Call::default() }).await?;
        self.call(Call { verb: Verb::Renew, resource, fence, ..Call::default() }).await?;
        Ok(())
    }

    async fn open(&mut self, ttl_ms: u64) -> Result<String, Failure> {
        let (consumer, ttl_ms) = (Some("nemesis".to_owned()), Some(ttl_ms));
        let opened = self.call(Call { verb: Verb::Open, consumer, ttl_ms, ..Call::default() }).await?;
        opened.session.ok_or(Failure::lost())
    }

    async fn acquire(&mut self, session: &str) -> Result<Answer, Failure> {
        let (resource, session) = (Some(CREW.to_owned()), Some(session.to_owned()));
        self.call(Call { verb: Verb::Acquire, resource, session, ..Call::default() }).await
    }
}
