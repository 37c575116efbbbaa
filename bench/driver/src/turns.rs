//! Measures operations per second. Each system's connections are opened and prepared before the measurement. Then the
//! systems take turns, A B C A B C, so that all meet the same state of the machine. Each connection has one operation
//! in flight and belongs to one thread, as in pgbench. Waking another thread is expensive, and would be most of the
//! measured time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

use crate::bounded::{bounded, longer};
use crate::measure::{Failure, Result, Servers};
use crate::worker::{Operation, Worker};
use crate::{postgres, redis};

#[derive(Args)]
pub struct Options {
    operation: Operation,
    #[arg(long)]
    connections: usize,
    /// Milliseconds of a turn
    #[arg(long)]
    turn: u64,
    #[arg(long)]
    turns: usize,
    /// Threads that drive the connections
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(required = true)]
    systems: Vec<String>,
}

/// The workers, each with the thread on which it was opened.
type Workers = Vec<(Handle, Box<dyn Worker>)>;

/// Starts threads, which end with the process.
fn threads(count: usize) -> Result<Vec<Handle>> {
    (0..count.max(1))
        .map(|_| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
            Ok(handle)
        })
        .collect()
}

async fn open(operation: Operation, system: String, n: usize, servers: Servers) -> Result<Box<dyn Worker>> {
    match system.as_str() {
        "redis" => redis::open(operation, &servers.redis, n).await,
        "redis_always" => redis::open(operation, &servers.redis_always, n).await,
        #[cfg(feature = "etcd")]
        "etcd" => crate::etcd::open(operation, &servers.etcd, n).await,
        system => postgres::open(operation, system, n).await,
    }
}

/// Runs all workers until the time is over; each then finishes its last step. The rate of each counts over its own
/// time.
async fn turn(workers: &mut Workers, time: Duration) -> Result<f64> {
    let mut running = JoinSet::new();
    for (thread, mut worker) in workers.drain(..) {
        let own = thread.clone();
        let work = async move {
            let (start, mut count) = (Instant::now(), 0_u32);
            while start.elapsed() < time {
                worker.step().await?;
                count += 1;
            }
            Ok::<_, Failure>(((own, worker), f64::from(count) / start.elapsed().as_secs_f64()))
        };
        running.spawn_on(work, &thread);
    }
    let mut rate = 0.0;
    while let Some(done) = running.join_next().await {
        let (worker, of_worker) = done??;
        workers.push(worker);
        rate += of_worker;
    }
    Ok(rate)
}

pub async fn run(options: Options, servers: &Servers) -> Result<serde_json::Value> {
    let time = Duration::from_millis(options.turn);
    let threads = threads(options.threads)?;
    let mut systems = Vec::new();
    for system in &options.systems {
        let mut workers = Workers::new();
        for (n, thread) in (0..options.connections).zip(threads.iter().cycle()) {
            let opened = thread.spawn(open(options.operation, system.clone(), n, servers.clone()));
            workers.push((thread.clone(), bounded(system, async { opened.await? }).await?));
        }
        systems.push((system, workers));
    }
    let mut rates: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    // The first round has cold caches and new files, and does not count.
    for round in 0..=options.turns {
        for (system, workers) in &mut systems {
            let rate = longer(time, system, turn(workers, time)).await?;
            if round > 0 {
                rates.entry(system).or_default().push((rate * 10.0).round() / 10.0);
            }
        }
    }
    Ok(serde_json::to_value(rates)?)
}
