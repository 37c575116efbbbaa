//! The faults, by a schedule that is drawn from a seed. Faults that end a client's connection or the whole server are
//! written down, because attached sessions end with their connection.
//!
//! Files, low to high: mod, permits.

mod permits;

use crate::caller::{Caller, Connection, Failure, config};
use crate::crowd::Crowd;
use crate::history::{Answer, Call, Verb, now};
use crate::workload::TTLS;
use anyhow::Result;
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::{Config, SimpleQueryMessage};

/// The possible faults and their weights. The last two take the whole server down.
const FAULTS: [(Kind, u32); 15] = [
    (Kind::Kill, 6),
    (Kind::Stop, 14),
    (Kind::TakeOver, 4),
    (Kind::Terminate, 6),
    (Kind::Cancel, 8),
    (Kind::Close, 4),
    (Kind::Force, 6),
    (Kind::WorkerOff, 2),
    (Kind::WorkerEnds, 3),
    (Kind::Resolve, 24),
    (Kind::Drain, 1),
    (Kind::Resize, 3),
    (Kind::Shrink, 1),
    (Kind::Crash, 1),
    (Kind::Restart, 1),
];

/// How much more often the favoured fault comes.
const FAVOUR: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Kind {
    Kill,
    Stop,
    TakeOver,
    Terminate,
    Cancel,
    Close,
    Force,
    WorkerOff,
    WorkerEnds,
    Resolve,
    Drain,
    /// Resizes a semaphore.
    Resize,
    /// Shrinks another semaphore while one of its holders dies, and then crashes the server.
    Shrink,
    Crash,
    Restart,
}

pub struct Nemesis {
    pub caller: Arc<Caller>,
    pub random: ChaCha8Rng,
    config: Config,
    connection: Option<Connection>,
    /// A transaction with an old snapshot, which stays open until the server ends it.
    snapshot: Option<Connection>,
    restart: Option<String>,
    crash: bool,
    pub favour: Option<Kind>,
}

type Row = Vec<Option<String>>;

impl Nemesis {
    pub fn new(
        caller: Arc<Caller>,
        random: ChaCha8Rng,
        database: &str,
        restart: Option<String>,
        crash: bool,
    ) -> Nemesis {
        let config = config(database, "checker nemesis");
        Nemesis { caller, random, config, connection: None, snapshot: None, restart, crash, favour: None }
    }

    /// Returns the rows of a statement.
    pub async fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        if self.connection.as_ref().is_none_or(|connection| connection.client.is_closed()) {
            self.connection = Some(Connection::open(&self.config).await?);
        }
        let Some(connection) = &self.connection else { return Err(Failure::lost()) };
        let messages = connection.client.simple_query(sql).await?;
        Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
                _ => None,
            })
            .collect())
    }

    /// Repeats a statement until it succeeds.
    pub async fn insist(&mut self, sql: &str) -> Vec<Row> {
        loop {
            match self.rows(sql).await {
                Ok(rows) => return rows,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn call(&mut self, call: Call) -> Result<Answer, Failure> {
        self.rows("SET lock_timeout = '2s'").await?;
        let Some(connection) = &self.connection else { return Err(Failure::lost()) };
        self.caller.call(&connection.client, call).await
    }

    /// Does one fault, drawn by chance.
    pub async fn strike(&mut self, crowd: &mut Crowd) -> Result<()> {
        let possible: Vec<(Kind, u32)> = FAULTS
            .into_iter()
            .filter(|(kind, _)| match kind {
                Kind::Crash | Kind::Shrink => self.crash,
                Kind::Restart => self.restart.is_some(),
                _ => true,
            })
            .map(|(kind, weight)| (kind, if self.favour == Some(kind) { weight * FAVOUR } else { weight }))
            .collect();
        let Ok((kind, _)) = possible.choose_weighted(&mut self.random, |(_, weight)| *weight) else { return Ok(()) };
        match kind {
            Kind::Kill | Kind::Stop | Kind::TakeOver => self.strike_client(*kind, crowd).await?,
            Kind::Resize => self.resize_by_chance().await,
            // A server that is still starting may refuse the fault.
            kind => drop(self.strike_server(*kind).await),
        }
        self.hold_snapshot().await;
        Ok(())
    }

    async fn strike_client(&mut self, kind: Kind, crowd: &mut Crowd) -> Result<()> {
        let awake = crowd.awake();
        let Some(index) = awake.choose(&mut self.random).copied() else { return Ok(()) };
        let consumer = crowd.processes[index].name.split('.').next().unwrap_or_default().to_owned();
        match kind {
            Kind::Kill => {
                crowd.kill(index, &self.caller).await;
                crowd.start(&consumer, self.random.random_range(0..3) == 0)?;
            }
            // The former process goes on for a while, and does not know of the take-over.
            Kind::TakeOver => {
                let asleep = self.random.random_range(0..2) == 0;
                if asleep {
                    crowd.stop(index, self.pause(), &self.caller);
                } else {
                    crowd.part(index).await;
                    sleep(Duration::from_millis(self.random.random_range(0..300))).await;
                }
                let name = crowd.start(&consumer, true)?.to_owned();
                self.caller.fault("take over".into(), Some(&name), false);
                sleep(Duration::from_millis(self.random.random_range(50..400))).await;
                crowd.wake(&self.caller, asleep);
                sleep(Duration::from_millis(self.random.random_range(20..200))).await;
                crowd.kill(index, &self.caller).await;
            }
            _ => {
                let time = self.pause();
                crowd.stop(index, time, &self.caller);
            }
        }
        Ok(())
    }

    /// Returns a time that may be shorter or longer than a TTL.
    fn pause(&mut self) -> Duration {
        let ttl = TTLS.choose(&mut self.random).copied().unwrap_or(1_000);
        Duration::from_millis(ttl * self.random.random_range(3..22) / 10)
    }

    async fn strike_server(&mut self, kind: Kind) -> Result<(), Failure> {
        let some = "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'checker c%' ORDER BY random() LIMIT 1";
        match kind {
            Kind::Terminate => {
                // A query draws the client. The fault is written before the statement that does it, as the client may
                // notice first.
                let victim = self.rows(&format!("SELECT pid, application_name {some}")).await?;
                if let Some([Some(pid), Some(name)]) = victim.first().map(Vec::as_slice) {
                    self.caller.fault("terminate".into(), name.strip_prefix("checker "), true);
                    self.rows(&format!("SELECT pg_terminate_backend({pid})")).await?;
                }
            }
            Kind::Cancel => {
                for _ in 0..5 {
                    self.rows(&format!("SELECT pg_cancel_backend(pid) {some}")).await?;
                    sleep(Duration::from_millis(self.random.random_range(0..10))).await;
                }
                self.caller.fault("cancel, five times".into(), None, false);
            }
            Kind::Close | Kind::Drain => {
                let found = self
                    .rows("SELECT session FROM eskit_lease.sessions WHERE NOT private ORDER BY random() LIMIT 1")
                    .await?;
                if let Some([Some(session)]) = found.first().map(Vec::as_slice) {
                    let verb = if kind == Kind::Close { Verb::Close } else { Verb::Drain };
                    self.call(Call { verb, session: Some(session.clone()), ..Call::default() }).await?;
                }
            }
            Kind::Shrink => {
                let done = self.shrink().await;
                self.worker(true).await;
                done?;
            }
            Kind::Force => self.force().await?,
            Kind::WorkerOff => self.worker_off().await?,
            Kind::WorkerEnds => {
                self.caller.fault("end the worker and its launcher".into(), None, false);
                self.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'eskit_lease%'",
                )
                .await?;
            }
            Kind::Resolve => self.resolve().await?,
            Kind::Crash => self.crash().await?,
            _ => self.restart().await,
        }
        Ok(())
    }

    /// Reads which session holds which lease, and releases one of these leases by force.
    async fn force(&mut self) -> Result<(), Failure> {
        let from = now();
        let held = self
            .rows(
                "SELECT l.resource, l.slot, l.fence, coalesce(s.request, l.session)
            FROM eskit_lease._leases AS l JOIN eskit_lease._sessions AS s USING (session) ORDER BY random()",
            )
            .await?;
        for row in &held {
            let [Some(resource), Some(slot), Some(fence), Some(session)] = row.as_slice() else { continue };
            let (slot, fence) = (slot.parse().ok(), fence.parse().ok());
            let look = Call {
                verb: Verb::Look,
                from,
                resource: Some(resource.clone()),
                session: Some(session.clone()),
                ..Call::default()
            };
            let number = self.caller.begin(look);
            self.caller.end(number, &Ok(Answer { fence, slot, ..Answer::default() }));
        }
        if let Some([Some(resource), _, Some(fence), _]) = held.first().map(Vec::as_slice) {
            let (resource, fence) = (Some(resource.clone()), fence.parse().ok());
            self.call(Call { verb: Verb::Force, resource, fence, ..Call::default() }).await?;
        }
        Ok(())
    }

    async fn worker_off(&mut self) -> Result<(), Failure> {
        self.worker(false).await;
        sleep(Duration::from_millis(self.random.random_range(200..2_500))).await;
        self.worker(true).await;
        Ok(())
    }

    pub async fn worker(&mut self, on: bool) {
        if on {
            self.insist("ALTER SYSTEM RESET eskit_lease.worker").await;
        } else {
            self.caller.fault("worker off".into(), None, false);
            self.insist("ALTER SYSTEM SET eskit_lease.worker = off").await;
        }
        self.insist("SELECT pg_reload_conf()").await;
        if on {
            self.caller.fault("worker on".into(), None, false);
        }
    }

    /// Ends prepared transactions that clients have left behind.
    pub async fn resolve(&mut self) -> Result<(), Failure> {
        for row in self.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").await? {
            let verb = if self.random.random_range(0..3) == 0 { Verb::RollbackPrepared } else { Verb::CommitPrepared };
            self.call(Call { verb, gid: row.into_iter().next().flatten(), ..Call::default() }).await?;
        }
        Ok(())
    }

    async fn crash(&mut self) -> Result<(), Failure> {
        let pid = self.rows("SELECT pg_backend_pid()").await?;
        if let Some([Some(pid)]) = pid.first().map(Vec::as_slice)
            && let Ok(pid) = pid.parse()
        {
            self.caller.fault("kill a backend, the server crashes".into(), None, true);
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        Ok(())
    }

    async fn restart(&mut self) {
        if let Some(command) = &self.restart {
            self.caller.fault("restart the server at once".into(), None, true);
            let done = tokio::process::Command::new("sh").arg("-c").arg(command).status().await;
            if !done.is_ok_and(|status| status.success()) {
                eprintln!("checker: {command} failed");
            }
        }
    }

    async fn hold_snapshot(&mut self) {
        if self.snapshot.as_ref().is_some_and(|held| !held.client.is_closed()) {
            return;
        }
        if let Ok(held) = Connection::open(&self.config).await {
            let begun = held
                .client
                .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM eskit_lease._sessions")
                .await;
            self.snapshot = begun.is_ok().then_some(held);
        }
    }

    /// Ends every fault that could keep a client from being served.
    pub async fn make_peace(&mut self, crowd: &mut Crowd) {
        self.snapshot = None;
        crowd.wake(&self.caller, true);
        self.worker(true).await;
        // A client may be preparing another transaction at this moment.
        for _ in 0..3 {
            while self.resolve().await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}
