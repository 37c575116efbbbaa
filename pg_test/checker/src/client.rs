//! A client: one process with one session after the other, which competes for the resources and writes what only their holders may write.
//!
//! It is told by a line of its standard input when the storm is over, and by the end of it when to go, and says `served` once it has had each
//! resource since the calm. While the storm lasts it makes trouble of its own: it lets statements time out, hangs up in the
//! middle of a call, rolls back, leaves prepared transactions behind, and now and then goes on writing though its session has expired.
//! It never looks at its clock: whether its trust was justified is judged from the history.

mod calls;
mod parting;

use crate::caller::{Caller, Connection, Failure, config};
use crate::heart;
use crate::history::{Answer, Call, Line, Verb, now};
use crate::workload::{LOCK, QUIET, QUIET_TURNS, RESOURCES, SPARE};
use anyhow::Result;
use clap::Args;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_postgres::Config;

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    pub seed: u64,
    /// Of this incarnation; its consumer is what comes before the dot.
    #[arg(long)]
    pub name: String,
    #[arg(long)]
    pub database: String,
    #[arg(long)]
    pub takeover: bool,
    #[arg(long)]
    pub history: PathBuf,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Phase {
    Storm,
    Calm,
    Leave,
}

#[derive(Clone)]
pub struct Session {
    pub id: String,
    pub ttl_ms: u64,
    attached: bool,
    /// The last one that was acted upon.
    revision: i64,
}

/// What the heartbeats are for; `None` while there is no session, or the client has forgotten itself.
pub type Beating = Arc<Mutex<Option<Session>>>;

struct Holding {
    resource: String,
    slot: i32,
    fence: i64,
    session: String,
}

struct Worker {
    caller: Arc<Caller>,
    config: Config,
    consumer: String,
    takeover: bool,
    /// It has yet to ask for all that it may have inherited.
    inherits: bool,
    /// Another process is about to take over.
    told_to_part: Arc<AtomicBool>,
    /// It works slowly, so that the other process comes meanwhile.
    parting: bool,
    connection: Option<Connection>,
    session: Option<Session>,
    beating: Beating,
    phase: watch::Receiver<Phase>,
    random: ChaCha8Rng,
    /// The transaction block that is open.
    tx: Option<u64>,
    count: u64,
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
    fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.phase() == Phase::Storm && self.random.random_range(0..100) < percent
    }

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
                // Long enough for nobody to be in line now and then: then only one of two that cross can be seen by the other.
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

    /// Gives up all places, and all that these have got it: else it might hold that while it waits for something else, and two of them each
    /// for the other.
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

    /// Asks for a resource, and waits for it if it is told to.
    async fn obtain(&mut self, resource: &str, patience: Duration) -> Result<Option<Holding>, Failure> {
        let until = Instant::now() + patience;
        if resource == QUIET {
            // What has changed before is no news: only what changes from here on has it ask again.
            self.hears_news(resource).await?;
        }
        loop {
            let storm = self.phase() == Phase::Storm;
            // Queueing takes a while before it is visible, so that it crosses releases.
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
    async fn hears_news(&mut self, resource: &str) -> Result<bool, Failure> {
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

    /// An acquire as a part of a transaction, which may be rolled back.
    async fn acquire_in_block(&mut self, resource: &str) -> Result<Answer, Failure> {
        self.begin("BEGIN").await?;
        let answer = self.about(Verb::Acquire, resource, None).await?;
        sleep(Duration::from_millis(self.random.random_range(0..10))).await;
        let keep = !self.chance(50);
        let verb = if keep { Verb::Commit } else { Verb::Rollback };
        self.call(Call { verb, ..Call::default() }).await?;
        self.tx = None;
        Ok(if keep { answer } else { Answer { reason: Some("busy".into()), ..Answer::default() } })
    }

    async fn begin(&mut self, how: &str) -> Result<(), Failure> {
        self.connected().await?;
        self.count += 1;
        self.tx = Some(self.count);
        let Some(connection) = &self.connection else { return Err(Failure::lost()) };
        Ok(connection.client.batch_execute(how).await?)
    }

    /// Works under a lease, and lets go of it in one of several ways, or not at all.
    async fn use_up(&mut self, holding: Holding) -> Result<(), Failure> {
        self.parting = self.told_to_part.swap(false, Ordering::Relaxed);
        if self.parting {
            return self.part(&holding).await;
        }
        let forgetful = self.chance(6);
        if forgetful {
            // Its session expires under its hands, and it does not know.
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
            // Kept, until it is asked for again or its session ends.
            _ => Ok(()),
        }
    }

    /// Not in the calm, where nobody decides what is prepared.
    async fn prepare(&mut self) -> Result<(), Failure> {
        if self.phase() > Phase::Storm {
            return self.call(Call { verb: Verb::Commit, ..Call::default() }).await.map(drop);
        }
        let gid = format!("{} {}", self.caller.name, self.count);
        self.call(Call { verb: Verb::Prepare, gid: Some(gid), ..Call::default() }).await?;
        Ok(())
    }

    /// A fenced transaction that leaves an element in the set.
    async fn write(&mut self, holding: &Holding, prepare: bool) -> Result<(), Failure> {
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

    /// A lock without a session of one's own, from its acquire to its release, or to its end.
    async fn lock(&mut self) -> Result<(), Failure> {
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
