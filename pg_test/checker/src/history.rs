//! The history of a run. It has every call of every client with its times and its answer, the faults, and the contents
//! of the database at the end.
//!
//! Each client appends to a file of its own, one JSON object a line. It writes a call before sending it, and its answer
//! on arrival. Lines survive the client's SIGKILL, so a call without an answer may or may not have happened. All times
//! are microseconds of CLOCK_BOOTTIME: the clients, the server and the faults share one machine and one clock.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

/// Returns the microseconds of CLOCK_BOOTTIME.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from).unwrap_or_default();
    now.as_micros() as u64
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    #[default]
    Open,
    Heartbeat,
    Wait,
    Drain,
    Close,
    Acquire,
    /// lock_acquire; its request serves as its session.
    Lock,
    Renew,
    Release,
    /// lease_release with a grace of `ttl_ms`.
    Grace,
    Cancel,
    Force,
    /// semaphore_resize, repeated until it succeeds.
    Resize,
    /// Another client has seen the holder in the view `leases`.
    Look,
    Begin,
    Check,
    Write,
    Commit,
    Rollback,
    Prepare,
    CommitPrepared,
    RollbackPrepared,
    /// The client drops its connection.
    Hangup,
}

/// One call. Fields that its verb does not take are absent.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Call {
    pub client: String,
    pub number: u64,
    pub from: u64,
    pub verb: Verb,
    /// The transaction block of this client that the call is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queue: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attach: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takeover: bool,
    #[serde(skip)]
    pub to: Option<u64>,
    #[serde(skip)]
    pub answer: Option<Answer>,
    /// The SQLSTATE, or `lost` if the connection ended during the call.
    #[serde(skip)]
    pub error: Option<String>,
}

/// The columns of the answers of all verbs.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alive: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Call {
    /// Returns the reason in the answer, or nothing.
    pub fn reason(&self) -> &str {
        self.answer.as_ref().and_then(|answer| answer.reason.as_deref()).unwrap_or_default()
    }

    /// Returns whether the outcome of the call, and thus its time, is unknown.
    pub fn is_lost(&self) -> bool {
        self.answer.is_none() && !self.failed()
    }

    /// Returns when the call was over at the latest.
    pub fn ended(&self) -> u64 {
        self.to.filter(|_| !self.is_lost()).unwrap_or(u64::MAX)
    }

    /// Returns whether the call certainly failed: PostgreSQL said so. A connection that ended during the call proves
    /// nothing.
    pub fn failed(&self) -> bool {
        self.error.as_deref().is_some_and(|code| code != "lost" && !code.starts_with("57P"))
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let to = self.to.map_or("-".to_owned(), |to| to.to_string());
        let call = serde_json::to_value(self).unwrap_or_default();
        let given = call.as_object().into_iter().flatten();
        let known = ["client", "number", "from", "verb"];
        let given: Vec<String> = given
            .filter(|(name, _)| !known.contains(&name.as_str()))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        write!(f, "{}..{to} {} {:?} {}", self.from, self.client, self.verb, given.join(" "))?;
        match (&self.answer, &self.error) {
            (Some(answer), _) => write!(f, " -> {}", serde_json::to_string(answer).unwrap_or_default()),
            (_, Some(error)) => write!(f, " -> {error}"),
            _ => write!(f, " -> no answer"),
        }
    }
}

/// A fault done to a client or to the server. `client`: the client, if the fault is done to one.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Fault {
    pub at: u64,
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Whether the fault ends connections: the client's, or all if it has no client.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disconnects: bool,
}

impl Fault {
    pub fn ends_server(&self) -> bool {
        self.disconnects && self.client.is_none()
    }
}

/// A committed row of the guarded set. `serial` is its place in the order of commits of its slot.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Row {
    pub resource: String,
    pub slot: i32,
    pub serial: i64,
    pub fence: i64,
    pub session: String,
    pub element: String,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Call(Box<Call>),
    Answer {
        client: String,
        number: u64,
        at: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Answer>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Fault(Fault),
    /// From here on there are no faults. Each of these clients must get each of these resources once.
    Calm {
        at: u64,
        clients: Vec<String>,
        resources: Vec<String>,
    },
    /// The client has got the resource since the calm.
    Served {
        at: u64,
        client: String,
        resource: String,
    },
    Row(Row),
    /// How many rows or other things of a kind remain in the database after all clients have departed.
    Left {
        what: String,
        count: i64,
    },
    Permits {
        resource: String,
        permits: i32,
    },
}

/// Writes lines to a file. They stay there even if the process is killed.
pub struct Recorder(Mutex<File>);

impl Recorder {
    pub fn create(path: &Path) -> Result<Recorder> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Recorder(Mutex::new(file.with_context(|| format!("cannot write {}", path.display()))?)))
    }

    pub fn write(&self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let mut file = self.0.lock().map_err(|_| anyhow::anyhow!("a task has panicked"))?;
        Ok(file.write_all(text.as_bytes())?)
    }
}

#[derive(Clone, Debug, Default)]
pub struct History {
    /// All calls, in the order of their beginnings.
    pub calls: Vec<Call>,
    pub faults: Vec<Fault>,
    pub calm: Option<(u64, Vec<String>, Vec<String>)>,
    pub served: Vec<(u64, String, String)>,
    pub rows: Vec<Row>,
    pub left: Vec<(String, i64)>,
    /// The permits of resources that have more than one.
    pub permits: HashMap<String, i32>,
}

impl History {
    pub fn read(path: &Path) -> Result<History> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut history = History::default();
        let mut calls: HashMap<(String, u64), Call> = HashMap::new();
        for line in BufReader::new(file).lines() {
            match serde_json::from_str(&line?)? {
                Line::Call(call) => {
                    calls.insert((call.client.clone(), call.number), *call);
                }
                Line::Answer { client, number, at, answer, error } => {
                    let call = calls.get_mut(&(client, number)).context("an answer to no call")?;
                    (call.to, call.answer, call.error) = (Some(at), answer, error);
                }
                Line::Fault(fault) => history.faults.push(fault),
                Line::Calm { at, clients, resources } => history.calm = Some((at, clients, resources)),
                Line::Served { at, client, resource } => history.served.push((at, client, resource)),
                Line::Row(row) => history.rows.push(row),
                Line::Left { what, count } => history.left.push((what, count)),
                Line::Permits { resource, permits } => {
                    history.permits.insert(resource, permits);
                }
            }
        }
        history.calls = calls.into_values().collect();
        history.calls.sort_by(|a, b| (a.from, &a.client, a.number).cmp(&(b.from, &b.client, b.number)));
        Ok(history)
    }
}
