//! Measures from the call that releases until the next holder, on another connection, knows. Each system has one turn
//! in each round, so all meet the same state of the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::baton::{Baton, Round, between};
use crate::bounded::bounded;
use crate::connection::Names;
use crate::lease::{Consumer, Watch};
use crate::measure::{Failure, Result, Servers, milliseconds};
use crate::wakeup;

/// First rounds, which do not count, as caches are cold.
const WARM_UP: usize = 10;
const HOUR: Duration = Duration::from_secs(3_600);

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

/// Measures from lease_release until session_wait answers to the next in line. The two consumers take turns.
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
