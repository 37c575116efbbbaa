//! Calls of a client. Each call is written to the history, sent as SQL that any client could send, and its answer is
//! written to the history.

use crate::history::{Answer, Call, Fault, Line, Recorder, Verb, now};
use anyhow::{Context, Result};
use serde_json::Value;
use std::env::var;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// Returns how to connect to a database of the server that libpq's variables name.
pub fn config(database: &str, name: &str) -> Config {
    let mut config = Config::new();
    config.host(var("PGHOST").unwrap_or("localhost".into()));
    config.port(var("PGPORT").ok().and_then(|port| port.parse().ok()).unwrap_or(5432));
    config.user(var("PGUSER").unwrap_or("postgres".into()));
    config.dbname(database).application_name(name);
    config
}

pub struct Connection {
    pub client: Client,
    task: JoinHandle<()>,
}

impl Connection {
    pub async fn open(config: &Config) -> Result<Connection, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { client, task })
    }

    /// Closes the socket without a goodbye.
    pub fn hang_up(self) {
        self.task.abort();
    }
}

/// Why a call has no answer: an SQLSTATE, or `lost`.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    pub fn lost() -> Failure {
        Failure("lost".into())
    }

    pub fn is_lost(&self) -> bool {
        self.0 == "lost"
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        match error.as_db_error() {
            Some(error) => Failure(error.code().code().to_owned()),
            None => Failure::lost(),
        }
    }
}

/// A caller and the file of its calls.
pub struct Caller {
    pub name: String,
    recorder: Recorder,
    numbers: AtomicU64,
}

impl Caller {
    pub fn new(name: &str, history: &Path) -> Result<Caller> {
        let (name, numbers) = (name.to_owned(), AtomicU64::new(1));
        Ok(Caller { name, recorder: Recorder::create(history)?, numbers })
    }

    pub fn write(&self, line: &Line) {
        if let Err(error) = self.recorder.write(line) {
            // A history with a gap proves nothing.
            eprintln!("checker: {error:#}");
            std::process::exit(3);
        }
    }

    pub fn fault(&self, what: String, client: Option<&str>, disconnects: bool) {
        self.write(&Line::Fault(Fault { at: now(), what, client: client.map(str::to_owned), disconnects }));
    }

    /// Writes down a call that begins now, or began at `from`. Returns its number.
    pub fn begin(&self, mut call: Call) -> u64 {
        call.client = self.name.clone();
        call.number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if call.from == 0 {
            call.from = now();
        }
        let number = call.number;
        self.write(&Line::Call(Box::new(call)));
        number
    }

    pub fn end(&self, number: u64, result: &Result<Answer, Failure>) {
        let (answer, error) = match result {
            Ok(answer) => (Some(answer.clone()), None),
            Err(Failure(code)) => (None, Some(code.clone())),
        };
        self.write(&Line::Answer { client: self.name.clone(), number, at: now(), answer, error });
    }

    pub async fn call(&self, on: &Client, call: Call) -> Result<Answer, Failure> {
        let sql = sql(&call);
        let number = self.begin(call);
        let result = ask(on, &sql).await;
        self.end(number, &result);
        result
    }
}

/// Runs a statement, and returns the answer in its first row. The statement has then been committed, unless it is part
/// of a transaction block.
async fn ask(on: &Client, sql: &str) -> Result<Answer, Failure> {
    let messages = on.simple_query(sql).await?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    // fence_check() returns nothing.
    let parsed = row
        .filter(|text| !text.is_empty())
        .map(serde_json::from_str::<Value>)
        .transpose()
        .map_err(|_| Failure("answer".into()))?;
    Ok(match parsed {
        Some(object @ Value::Object(_)) => serde_json::from_value(object).map_err(|_| Failure("answer".into()))?,
        Some(Value::Bool(done)) => Answer { done: Some(done), ..Answer::default() },
        _ => Answer { done: Some(true), ..Answer::default() },
    })
}

/// Returns the statement of a call. Its values are the checker's own and contain no quotes.
fn sql(call: &Call) -> String {
    let text = |value: &Option<String>| value.as_ref().map_or("NULL".to_owned(), |value| format!("'{value}'"));
    let (resource, session, consumer) = (text(&call.resource), text(&call.session), text(&call.consumer));
    let (gid, element) = (text(&call.gid), text(&call.element));
    let (fence, ttl) = (call.fence.unwrap_or(0), call.ttl_ms.unwrap_or(0));
    let of =
        |function: &str, arguments: String| format!("SELECT to_jsonb(a) FROM eskit_lease.{function}({arguments}) AS a");
    match call.verb {
        Verb::Open => of(
            "session_open",
            format!("{consumer}, '{ttl} ms', attach => {}, takeover => {}", call.attach, call.takeover),
        ),
        Verb::Heartbeat => of("session_heartbeat", session),
        Verb::Wait => of("session_wait", format!("{session}, {}", call.revision.unwrap_or(0))),
        Verb::Drain => of("session_drain", session),
        Verb::Close => of("session_close", session),
        Verb::Acquire => of("lease_acquire", format!("{resource}, {session}, {}", call.queue)),
        Verb::Lock => of("lock_acquire", format!("{resource}, {consumer}, '{ttl} ms', {session}")),
        Verb::Renew => of("lease_renew", format!("{resource}, {fence}")),
        Verb::Release => of("lease_release", format!("{resource}, {fence}")),
        Verb::Grace => of("lease_release", format!("{resource}, {fence}, '{ttl} ms'")),
        Verb::Cancel => of("lease_cancel", format!("{resource}, {session}")),
        Verb::Force => of("lease_force_release", format!("{resource}, {fence}, 'the checker'")),
        Verb::Resize => {
            format!("SELECT eskit_lease.semaphore_resize({resource}, {})", call.permits.unwrap_or(1))
        }
        Verb::Look | Verb::Hangup => String::new(),
        Verb::Begin => "BEGIN".into(),
        Verb::Check => format!("SELECT eskit_lease.fence_check({resource}, {fence})"),
        Verb::Write => format!(
            "WITH mine AS (UPDATE serials SET last = last + 1 WHERE resource = {resource} AND slot = {} RETURNING *)
             INSERT INTO elements SELECT resource, slot, last, {fence}, {session}, {element} FROM mine",
            call.slot.unwrap_or(0)
        ),
        Verb::Commit => "COMMIT".into(),
        Verb::Rollback => "ROLLBACK".into(),
        Verb::Prepare => format!("PREPARE TRANSACTION {gid}"),
        Verb::CommitPrepared => format!("COMMIT PREPARED {gid}"),
        Verb::RollbackPrepared => format!("ROLLBACK PREPARED {gid}"),
    }
}

/// Makes the tables in which each fenced transaction leaves an element. The rows of counters exist from the start, one
/// for each slot.
pub async fn create_tables(on: &Client, slots: &[(&str, i32)]) -> Result<()> {
    on.batch_execute(
        "CREATE TABLE serials (resource text, slot int, last bigint NOT NULL DEFAULT 0, PRIMARY KEY (resource, slot)) WITH (fillfactor = 50);
         CREATE TABLE elements (resource text, slot int, serial bigint, fence bigint, session text, element text)",
    )
    .await
    .context("cannot make the tables")?;
    for (resource, permits) in slots {
        on.batch_execute(&format!("INSERT INTO serials SELECT '{resource}', generate_series(0, {permits} - 1)"))
            .await?;
    }
    Ok(())
}
