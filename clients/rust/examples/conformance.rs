//! The program of the conformance kit: does what it is told in JSON lines, and tells what happens.
//! `clients/conformance/README.md` has the commands and events.

use eskit_lease::{BoxError, Error, Item, Lead, Leases, Partition, Running};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Write, stdout};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::{task::JoinHandle, time::sleep};
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

/// Writes an event, with the id of the command that it is of.
fn tell(event: &str, id: &Value, told: Value) {
    let now = clock_gettime(ClockId::Monotonic);
    let mut line = json!({"event": event, "at": now.tv_sec as f64 + now.tv_nsec as f64 / 1e9});
    if !id.is_null() {
        line["id"] = id.clone();
    }
    if let (Value::Object(line), Value::Object(told)) = (&mut line, told) {
        line.extend(told);
    }
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn outcome(error: &Error) -> &'static str {
    match error {
        Error::Lost(_) => "lost",
        Error::Refused(_) => "refused",
        Error::Unsure(_) => "unsure",
        _ => "error",
    }
}

/// The application's own connections.
struct Pool {
    dsn: String,
    size: u32,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
}

/// A connection of the pool, until it is dropped.
struct Pooled<'a> {
    pool: &'a Pool,
    client: Option<Client>,
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    async fn get(&self) -> Result<Pooled<'_>, BoxError> {
        let permit = self.permits.acquire().await?;
        let idle = self.idle.lock().map_err(|_| "poisoned")?.pop().filter(|client| !client.is_closed());
        let client = match idle {
            Some(client) => client,
            None => {
                let (client, driver) = tokio_postgres::connect(&self.dsn, NoTls).await?;
                tokio::spawn(driver);
                client
            }
        };
        Ok(Pooled { pool: self, client: Some(client), _permit: permit })
    }
}

impl Pooled<'_> {
    fn client(&mut self) -> Result<&mut Client, BoxError> {
        self.client.as_mut().ok_or_else(|| "given back".into())
    }
}

impl Drop for Pooled<'_> {
    fn drop(&mut self) {
        if let (Ok(mut idle), Some(client)) = (self.pool.idle.lock(), self.client.take()) {
            idle.push(client);
        }
    }
}

/// A verb that was told to begin.
enum Verb {
    Lead(CancellationToken, JoinHandle<()>),
    Running(Running),
}

#[derive(Clone)]
struct App {
    leases: Leases,
    pool: Arc<Pool>,
    name: String,
}

impl App {
    async fn open(command: &Value) -> Result<App, BoxError> {
        let text = |field: &str| command[field].as_str().map(str::to_owned);
        let dsn = text("dsn").ok_or("no dsn")?;
        let name = text("name").ok_or("no name")?;
        let size = command["pool"].as_u64().unwrap_or(4) as u32;
        let leases = Leases::builder(&dsn)
            .name(&name)
            .ttl(Duration::from_secs_f64(command["ttl"].as_f64().unwrap_or(30.0)))
            .takeover(command["takeover"].as_bool().unwrap_or(false))
            .on_state(|state| tell("keeper", &Value::Null, json!({"state": format!("{state:?}").to_lowercase()})))
            .open()
            .await?;
        let dsn = text("work").unwrap_or(dsn);
        let pool = Arc::new(Pool { dsn, size, permits: Semaphore::new(size as usize), idle: Mutex::default() });
        tell("opened", &command["id"], json!({"session": leases.session()}));
        Ok(App { leases, pool, name })
    }

    async fn lead(self, id: Value, name: String, every: Duration, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let lead = match stop.run_until_cancelled(self.leases.lead(&name)).await {
                Some(Ok(lead)) => lead,
                Some(Err(Error::Closed)) | None => return,
                Some(Err(error)) => {
                    tell("error", &id, json!({"error": error.to_string()}));
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let told = json!({"fence": lead.fence()});
            tell("granted", &id, told.clone());
            let (token, its, also) = (lead.token().clone(), id.clone(), told.clone());
            let cancelled = tokio::spawn(async move {
                token.cancelled().await;
                tell("cancelled", &its, also);
            });
            while !stop.is_cancelled() && !lead.token().is_cancelled() {
                if let Err(error) = self.write(&lead, &id).await {
                    tell(outcome(&error), &id, json!({"fence": lead.fence(), "error": error.to_string()}));
                }
                stop.run_until_cancelled(lead.token().run_until_cancelled(sleep(every))).await;
            }
            if lead.token().is_cancelled() {
                let _ = cancelled.await;
            } else {
                cancelled.abort();
            }
            lead.release().await;
            tell("ended", &id, told);
        }
    }

    async fn write(&self, lead: &Lead, id: &Value) -> Result<(), Error> {
        let Some(pooled) = lead.token().run_until_cancelled(self.pool.get()).await else {
            return Ok(());
        };
        let mut pooled = pooled?;
        if !lead.is_trusted() {
            return Ok(());
        }
        let (name, fence) = (lead.name(), lead.fence());
        tell("begin", id, json!({"fence": fence}));
        let write = "INSERT INTO kit_writes (consumer, name, fence) VALUES ($1, $2, $3)";
        lead.transaction(pooled.client()?, async |tx| Ok(tx.execute(write, &[&self.name, &name, &fence]).await?))
            .await?;
        tell("wrote", id, json!({"fence": fence}));
        Ok(())
    }

    async fn apply(self, partition: Partition, id: Value, every: Duration) -> Result<(), BoxError> {
        let told = json!({"partition": partition.number(), "fence": partition.fence()});
        tell("started", &id, told.clone());
        let (token, its, also) = (partition.token().clone(), id.clone(), told.clone());
        let _ended = Ended(id.clone(), told.clone());
        tokio::spawn(async move {
            token.cancelled().await;
            tell("cancelled", &its, also);
        });
        while !partition.token().is_cancelled() {
            if let Err(error) = self.apply_batch(&partition, &id, &told).await {
                let mut told = told.clone();
                told["error"] = error.to_string().into();
                tell(outcome(&error), &id, told);
                return Err(error.into());
            }
            partition.token().run_until_cancelled(sleep(every)).await;
        }
        Ok(())
    }

    async fn apply_batch(&self, partition: &Partition, id: &Value, told: &Value) -> Result<(), Error> {
        let Some(pooled) = partition.token().run_until_cancelled(self.pool.get()).await else {
            return Ok(());
        };
        let mut pooled = pooled?;
        let (number, fence) = (partition.number(), partition.fence());
        let read = "SELECT position FROM kit_events WHERE part = $1 AND position > $2 ORDER BY position LIMIT 5";
        let write = "INSERT INTO kit_applied (part, position, fence, consumer) VALUES ($1, $2, $3, $4)";
        tell("begin", id, told.clone());
        let applied = partition.transaction(pooled.client()?, async |tx| {
            let expected = partition.position(tx).await?;
            let rows = tx.query(read, &[&number, &expected]).await?;
            let Some(last) = rows.last() else {
                return Ok(0);
            };
            if !partition.commit(tx, last.get(0), expected).await? {
                return Ok(0);
            }
            for row in &rows {
                tx.execute(write, &[&number, &row.get::<_, i64>(0), &fence, &self.name]).await?;
            }
            Ok(rows.len())
        });
        if applied.await? > 0 {
            tell("applied", id, told.clone());
        }
        Ok(())
    }

    async fn handle(self, item: Item, id: Value) -> Result<(), BoxError> {
        let payload: Value = serde_json::from_str(&item.payload)?;
        let told = json!({"item": item.id});
        if i64::from(item.attempt) <= payload["fail"].as_i64().unwrap_or(0) {
            tell("failed", &id, told);
            return Err("told to fail".into());
        }
        sleep(Duration::from_secs_f64(payload["seconds"].as_f64().unwrap_or(0.0))).await;
        let mut pooled = self.pool.get().await?;
        let write = "INSERT INTO kit_done (item, consumer) VALUES ($1, $2)";
        let done =
            item.transaction(pooled.client()?, async |tx| Ok(tx.execute(write, &[&item.id, &self.name]).await?));
        match done.await {
            Ok(_) => tell("handled", &id, told),
            Err(error) => {
                tell("failed", &id, told);
                return Err(error.into());
            }
        }
        Ok(())
    }

    async fn once(self, command: Value) {
        let key = command["key"].as_str().unwrap_or_default();
        let once = self.leases.once(key, async |_| {
            let mut pooled = self.pool.get().await?;
            let write = "INSERT INTO kit_once (key, consumer) VALUES ($1, $2)";
            pooled.client()?.execute(write, &[&key, &self.name]).await?;
            sleep(Duration::from_secs_f64(command["seconds"].as_f64().unwrap_or(0.0))).await;
            match command["fail"].as_bool() {
                Some(true) => Err("told to fail".into()),
                _ => Ok(json!({"by": self.name})),
            }
        });
        let told = match once.await {
            Ok(once) => {
                let result = once.result.and_then(|result| serde_json::from_str::<Value>(&result).ok());
                json!({"first": once.first, "state": once.state, "result": result})
            }
            Err(error) => {
                json!({"first": true, "state": "failed", "result": null, "error": error.to_string()})
            }
        };
        tell("once", &command["id"], told);
    }

    async fn hold(self, command: Value) {
        let mut held = Vec::new();
        for _ in 0..self.pool.size {
            held.extend(self.pool.get().await);
        }
        tell("held", &command["id"], json!({}));
        sleep(Duration::from_secs_f64(command["seconds"].as_f64().unwrap_or(0.0))).await;
        drop(held);
        tell("free", &command["id"], json!({}));
    }

    /// What does not compile is told as such.
    async fn misuse(self, command: Value) {
        let case = command["case"].as_str().unwrap_or_default();
        let done = match case {
            "after_close" => self.misuse_after_close().await,
            "ended_scope" => self.misuse_ended_scope().await,
            "two_threads" => {
                let (one, two) = tokio::join!(self.leases.lead("misuse one"), self.leases.lead("misuse two"));
                one.and(two).map(drop)
            }
            _ => Err(Error::Misuse("DoesNotCompile")),
        };
        let error = done.err().map(|error| match error {
            Error::Misuse(error) => error.to_owned(),
            other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
        });
        tell("misused", &command["id"], json!({"case": case, "error": error}));
    }

    async fn misuse_after_close(&self) -> Result<(), Error> {
        let leases = Leases::builder(&self.pool.dsn).open().await?;
        leases.close().await;
        leases.lead("misuse").await.map(drop)
    }

    async fn misuse_ended_scope(&self) -> Result<(), Error> {
        let lead = self.leases.lead("misuse").await?;
        lead.unsure();
        let mut pooled = self.pool.get().await?;
        let tx = pooled.client()?.transaction().await?;
        lead.guard(&tx).await
    }
}

/// Tells the end of a partition's work, also if it was dropped.
struct Ended(Value, Value);

impl Drop for Ended {
    fn drop(&mut self) {
        tell("ended", &self.0, self.1.clone());
    }
}

#[derive(Default)]
struct Program {
    app: Option<App>,
    verbs: HashMap<String, Verb>,
}

impl Program {
    async fn obey(&mut self, command: Value) {
        let id = command["id"].clone();
        let every = Duration::from_secs_f64(command["every"].as_f64().unwrap_or(0.01));
        let text = |field: &str| command[field].as_str().unwrap_or_default().to_owned();
        let Some(app) = self.app.clone() else {
            match command["do"].as_str() {
                Some("open") => match App::open(&command).await {
                    Ok(app) => self.app = Some(app),
                    Err(error) => tell("error", &id, json!({"error": error.to_string()})),
                },
                Some("misuse") => tell("misused", &id, json!({"case": command["case"], "error": "DoesNotCompile"})),
                _ => tell("error", &id, json!({"error": "not open"})),
            }
            return;
        };
        match command["do"].as_str().unwrap_or_default() {
            "lead" => {
                let stop = CancellationToken::new();
                let task = tokio::spawn(app.lead(id.clone(), text("name"), every, stop.clone()));
                self.verbs.insert(id.to_string(), Verb::Lead(stop, task));
            }
            "join" => {
                let (leases, its) = (app.leases.clone(), id.clone());
                let running = leases.join(&text("group"), move |part| app.clone().apply(part, its.clone(), every));
                self.verbs.insert(id.to_string(), Verb::Running(running));
            }
            "work" => {
                let (leases, its) = (app.leases.clone(), id.clone());
                let concurrency = command["concurrency"].as_u64().unwrap_or(1) as usize;
                let handler = move |item| app.clone().handle(item, its.clone());
                let running = leases.work(&text("queue"), concurrency, handler);
                self.verbs.insert(id.to_string(), Verb::Running(running));
            }
            "once" => drop(tokio::spawn(app.once(command))),
            "stop" => {
                let verb = self.verbs.remove(&id.to_string());
                tokio::spawn(async move {
                    match verb {
                        Some(Verb::Lead(stop, task)) => {
                            stop.cancel();
                            let _ = task.await;
                        }
                        Some(Verb::Running(running)) => drop(running.stop().await),
                        None => (),
                    }
                    tell("stopped", &id, json!({}));
                });
            }
            "hold" => drop(tokio::spawn(app.hold(command))),
            "state" => {
                let state = format!("{:?}", app.leases.state()).to_lowercase();
                tell("state", &id, json!({"state": state, "session": app.leases.session()}));
            }
            "drain" => drop(tokio::spawn(async move {
                app.leases.drain(Duration::from_secs_f64(command["seconds"].as_f64().unwrap_or(10.0))).await;
                tell("drained", &id, json!({}));
            })),
            "close" => drop(tokio::spawn(async move {
                app.leases.close().await;
                tell("closed", &id, json!({}));
            })),
            "misuse" => drop(tokio::spawn(app.misuse(command))),
            other => tell("error", &id, json!({"error": format!("no command {other}")})),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut program = Program::default();
    let mut terminated = signal(SignalKind::terminate())?;
    let mut lines = BufReader::new(stdin()).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) => program.obey(serde_json::from_str(&line)?).await,
                None => break,
            },
            _ = terminated.recv() => break,
        }
    }
    if let Some(app) = program.app {
        app.leases.drain(Duration::from_secs(10)).await;
    }
    std::process::exit(0); // the thread that reads the standard input would go on
}
