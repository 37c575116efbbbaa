//! A client: one process that has one session after another. It competes for the resources and writes rows that only
//! their holders may write.
//!
//! A line on its standard input says that the storm is over. The end of the input says that the client must leave. It
//! prints `served` once it has held each resource since the calm. During the storm it also makes trouble itself. It
//! lets statements time out, hangs up in the middle of a call, rolls back, and leaves prepared transactions behind. Now
//! and then it goes on writing after its session has expired. It never looks at its clock: the checks judge from the
//! history whether its trust was justified.
//!
//! Files, low to high: worker, heart, calls, parting, obtain, work, mod.

mod calls;
mod heart;
mod obtain;
mod parting;
mod work;
mod worker;

use crate::caller::{Caller, Failure, config};
use crate::history::{Call, Line, Verb, now};
use crate::workload::{QUIET, QUIET_TURNS, RESOURCES};
use anyhow::Result;
use clap::Args;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::watch;
use tokio::time::sleep;
use worker::{Beating, Phase, Worker};

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    pub seed: u64,
    /// The name of this incarnation; the part before the dot is its consumer
    #[arg(long)]
    pub name: String,
    #[arg(long)]
    pub database: String,
    #[arg(long)]
    pub takeover: bool,
    #[arg(long)]
    pub history: PathBuf,
}

pub async fn run(options: Options) -> Result<()> {
    let caller = Arc::new(Caller::new(&options.name, &options.history)?);
    let config = config(&options.database, &format!("checker {}", options.name));
    let (tell, phase) = watch::channel(Phase::Storm);
    let told_to_part = Arc::new(AtomicBool::new(false));
    let told = told_to_part.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == "part" {
                told.store(true, Ordering::Relaxed);
            } else {
                tell.send_replace(Phase::Calm);
            }
        }
        tell.send_replace(Phase::Leave);
    });
    let beating = Beating::default();
    tokio::spawn(heart::beat(caller.clone(), config.clone(), beating.clone()));
    let consumer = options.name.split('.').next().unwrap_or_default().to_owned();
    let seed = options.name.bytes().fold(options.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let random = ChaCha8Rng::seed_from_u64(seed);
    let takeover = options.takeover;
    Worker {
        caller,
        config,
        consumer,
        takeover,
        inherits: takeover,
        told_to_part,
        parting: false,
        connection: None,
        session: None,
        beating,
        phase,
        random,
        tx: None,
        count: 0,
    }
    .live()
    .await;
    Ok(())
}

impl Worker {
    async fn live(mut self) {
        while self.phase() == Phase::Storm {
            if let Err(failure) = self.turn().await {
                self.recover(failure).await;
            }
        }
        while self.phase() == Phase::Calm
            && let Err(failure) = self.put_down().await
        {
            self.recover(failure).await;
        }
        for (resource, _) in RESOURCES {
            let mut turns = if resource == QUIET { QUIET_TURNS } else { 1 };
            while turns > 0 && self.phase() == Phase::Calm {
                match self.be_served(resource).await {
                    Ok(served) => turns -= u32::from(served),
                    Err(failure) => self.recover(failure).await,
                }
                // This is long enough for the line to be empty now and then. One of two crossing calls must see the
                // other only if the line is empty.
                sleep(Duration::from_millis(self.random.random_range(10..120))).await;
            }
            if turns == 0 {
                self.caller.write(&Line::Served {
                    at: now(),
                    client: self.caller.name.clone(),
                    resource: resource.into(),
                });
            }
        }
        println!("served");
        while self.phase() < Phase::Leave {
            sleep(Duration::from_millis(20)).await;
        }
        if let Some(session) = self.session.take() {
            self.forget();
            drop(self.call(Call { verb: Verb::Close, session: Some(session.id), ..Call::default() }).await);
        }
    }

    async fn turn(&mut self) -> Result<(), Failure> {
        self.open().await?;
        if std::mem::take(&mut self.inherits) {
            return self.ask_for_all().await;
        }
        if self.random.random_range(0..10) == 0 {
            return self.lock().await;
        }
        let (resource, _) = *RESOURCES.choose(&mut self.random).unwrap_or(&RESOURCES[0]);
        let patience = Duration::from_millis(self.random.random_range(100..2_500));
        match self.obtain(resource, patience).await? {
            Some(holding) => self.use_up(holding).await,
            None => {
                sleep(Duration::from_millis(self.random.random_range(0..20))).await;
                Ok(())
            }
        }
    }

    async fn be_served(&mut self, resource: &str) -> Result<bool, Failure> {
        self.open().await?;
        let Some(holding) = self.obtain(resource, Duration::from_secs(3_600)).await? else { return Ok(false) };
        self.write(&holding, false).await?;
        let released = self.about(Verb::Release, resource, Some(holding.fence)).await?;
        Ok(released.done == Some(true))
    }

    /// Gives up all places in line, and all leases granted to them. Otherwise two clients might each hold a lease and
    /// wait for the other's.
    async fn put_down(&mut self) -> Result<(), Failure> {
        let Some(session) = self.session.as_ref().map(|session| session.id.clone()) else { return Ok(()) };
        for (resource, _) in RESOURCES {
            self.about(Verb::Cancel, resource, None).await?;
        }
        for (resource, _) in RESOURCES {
            let (resource, session) = (Some(resource.to_owned()), Some(session.clone()));
            let ask = Call { verb: Verb::Acquire, session, resource: resource.clone(), ..Call::default() };
            if let Some(fence) = self.call(ask).await?.fence {
                self.call(Call { verb: Verb::Release, resource, fence: Some(fence), ..Call::default() }).await?;
            }
        }
        Ok(())
    }
}
