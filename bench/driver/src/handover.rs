//! From the call that lets go to the next one's knowing, in another connection: each system once in each round, so that all see the same
//! state of the machine.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::bounded::bounded;
use crate::lease::{Consumer, Watch};
use crate::postgres::Names;
use crate::{Failure, Result, Servers, milliseconds, wakeup};

/// Rounds that do not count, as caches are cold.
const WARM_UP: usize = 10;
const HOUR: Duration = Duration::from_secs(3_600);

/// One time is measured.
pub type Round<'a> = Pin<Box<dyn Future<Output = Result<Duration>> + Send + 'a>>;

pub trait Baton: Send {
    fn pass(&mut self) -> Round<'_>;
}

/// Waits until all is quiet: the next holder waits already, and the query that made sure of that is over.
pub async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

/// The time from the start of `act` to the moment that `arrival` tells, of whom is known that it waits.
pub async fn between(
    arrival: impl Future<Output = Result<Instant>> + Send + 'static,
    waits: impl Future<Output = Result<()>>,
    act: impl Future<Output = Result<()>>,
) -> Result<Duration> {
    let arrival = tokio::spawn(arrival);
    // A task that fails before it waits is not waited for.
    waits.await?;
    settle().await;
    let start = Instant::now();
    act.await?;
    arrival.await?.map(|arrived| arrived.saturating_duration_since(start))
}

async fn open(system: &str, servers: &Servers) -> Result<Box<dyn Baton>> {
    match system {
        "eskit" => Ok(Box::new(Lease::open().await?)),
        "notify" => wakeup::notify("NOTIFY driver_baton").await,
        "notify_there_and_back" => wakeup::there_and_back().await,
        "update_notify" => wakeup::update_and_notify().await,
        "advisory" => wakeup::advisory().await,
        #[cfg(feature = "etcd")]
        "etcd" => crate::etcd::baton(&servers.etcd).await,
        _ => {
            let _ = servers;
            Err(Failure::from(format!("no hand-over of {system}")))
        }
    }
}

pub async fn run(rounds: usize, systems: &[String], servers: &Servers) -> Result<serde_json::Value> {
    let mut batons = Vec::new();
    for system in systems {
        batons.push((system, bounded(system, open(system, servers)).await?));
    }
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 0..WARM_UP + rounds {
        for (system, baton) in &mut batons {
            let time = bounded(system, baton.pass()).await?;
            if round >= WARM_UP {
                times.entry(system).or_default().push(milliseconds(time));
            }
        }
    }
    Ok(serde_json::to_value(times)?)
}

/// lease_release, until session_wait answers who is next in line. They take turns.
struct Lease {
    holder: std::sync::Arc<Consumer>,
    next: std::sync::Arc<Consumer>,
    name: String,
    fence: i64,
    watch: Watch,
}

impl Lease {
    async fn open() -> Result<Self> {
        let holder = Consumer::open("driver-a", HOUR, false).await?;
        let name = Names::of(0).next();
        let fence = holder.acquire(&name).await?;
        let next = Consumer::open("driver-b", HOUR, false).await?;
        Ok(Self { holder: holder.into(), next: next.into(), name, fence, watch: Watch::session_wait().await? })
    }
}

impl Baton for Lease {
    fn pass(&mut self) -> Round<'_> {
        Box::pin(async {
            let revision = self.next.queue(&self.name).await?;
            let next = self.next.clone();
            let news = async move { next.news(revision).await };
            let time = between(news, self.watch.until_waiting(), self.holder.release(&self.name, self.fence)).await?;
            self.fence = self.next.held(&self.name).await?;
            std::mem::swap(&mut self.holder, &mut self.next);
            Ok(time)
        })
    }
}
