//! The keeper of one session: its connection, and a second one for all other calls.

use crate::core::{Action, Answer, Core, ENDED};
use crate::error::{Error, State, is_of_statement, with_causes};
use crate::line::{Connect, Line};
use crate::settings::{Builder, default_name};
use std::collections::{HashMap, hash_map::RandomState};
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::{io, mem, time::Duration, time::Instant};
use tokio::time::{sleep, sleep_until, timeout};
use tokio::{runtime::Handle, sync, sync::watch};
use tokio_postgres::{Row, error::SqlState};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const IDLE: Duration = Duration::from_secs(10);
const OPEN: &str = "SELECT true AS alive, trust_ms, revision, '' AS reason, session::text \
                    FROM eskit_lease.session_open($1, $2::interval, takeover => $3::boolean)";
const WAIT: &str = "SELECT * FROM eskit_lease.session_wait($1::uuid, $2::bigint, $3::interval)";
const BEAT: &str = "SELECT * FROM eskit_lease.session_heartbeat($1::uuid)";
const WATCH: &str = "SELECT * FROM eskit_lease.session_watch($1::uuid, $2::regclass)";

/// Writes a line to the log, with the feature `tracing`.
macro_rules! log {
    ($level:ident, $($told:tt)+) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!($($told)+);
        #[cfg(not(feature = "tracing"))]
        let _ = format_args!($($told)+);
    }};
}
pub(crate) use log;

/// What changes, behind one lock.
struct Kept {
    core: Core,
    line: Option<Line>,
    job: Option<AbortOnDropHandle<()>>, // what the keeper's connection does
    scopes: CancellationToken,          // the parent of all scopes that were handed out since the last cancel
    told: State,
    error: Option<Error>, // of the last try to connect or to open
}

/// Is locked by the call of a verb for a name.
pub(crate) type Turn = sync::Mutex<()>;
/// The second connection, and what closes it when it is idle.
type Second = (Option<Line>, Option<AbortOnDropHandle<()>>);

pub(crate) struct Keeper {
    pub name: String,
    pub ttl: Duration,
    pub began: Instant,
    pub runtime: Handle,
    pub asks: watch::Sender<u64>,
    pub stop: CancellationToken, // it drains
    pub work: TaskTracker,       // what must end before the session is closed
    connect: Connect,
    watch: Option<String>,
    on_state: Option<Box<dyn Fn(State) + Send + Sync>>,
    closing: OnceLock<Instant>,
    kept: Mutex<Kept>,
    due: watch::Sender<Option<Duration>>,
    second: sync::Mutex<Second>,
    turns: Mutex<HashMap<(&'static str, String), Weak<Turn>>>,
}

impl Keeper {
    /// Starts a keeper that closes when `open` is cancelled.
    pub fn start(settings: Builder, open: CancellationToken) -> Result<Arc<Self>, Error> {
        let core = Core::start(settings.ttl, settings.takeover, settings.watch.is_some());
        let (scopes, told) = (CancellationToken::new(), State::Starting);
        let keeper = Arc::new(Keeper {
            name: settings.name.unwrap_or_else(default_name),
            ttl: settings.ttl,
            began: Instant::now(),
            runtime: Handle::current(),
            asks: watch::Sender::new(0),
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
            connect: settings.connect?,
            watch: settings.watch,
            on_state: settings.on_state,
            closing: OnceLock::new(),
            kept: Mutex::new(Kept { core, line: None, job: None, scopes, told, error: None }),
            due: watch::Sender::new(None),
            second: sync::Mutex::default(),
            turns: Mutex::default(),
        });
        keeper.work.close();
        tokio::spawn(keeper.clone().keep_time(open));
        keeper.event(|_, _| ());
        Ok(keeper)
    }

    // ---- what others ask ----

    /// Returns the state, the session, until when it is trusted, and the parent of the scopes that begin now.
    pub fn now(&self) -> (State, Option<String>, Instant, CancellationToken) {
        let kept = self.kept();
        let (state, until) = (kept.core.state(self.began.elapsed()), self.began + kept.core.trusted_until);
        (state, kept.core.session.clone(), until, kept.scopes.clone())
    }

    /// Waits until work may begin: returns the session, and the parent of the scopes that begin now.
    pub async fn trusted(&self, end: &CancellationToken) -> Result<(String, CancellationToken), Error> {
        let mut asks = self.asks.subscribe();
        loop {
            let (state, session, _, scopes) = self.now();
            match (state, session) {
                _ if self.stop.is_cancelled() => return Err(Error::Closed),
                (State::Trusted, Some(session)) => return Ok((session, scopes)),
                _ => drop(self.until(end, asks.changed()).await?),
            }
        }
    }

    /// Waits for something, until the keeper drains or `end` is cancelled.
    pub async fn until<T>(&self, end: &CancellationToken, wait: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Error::Closed),
            () = end.cancelled() => Err(Error::Closed),
            done = wait => Ok(done),
        }
    }

    /// Returns the turn for a name. The calls of a process for one name follow one another: they would get one fence.
    pub fn turn(&self, verb: &'static str, name: &str) -> Arc<Turn> {
        let mut turns = lock(&self.turns);
        if turns.len() == turns.capacity() {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let kept = turns.entry((verb, name.to_owned())).or_default();
        let turn = kept.upgrade().unwrap_or_default();
        *kept = Arc::downgrade(&turn);
        turn
    }

    /// Begins to watch the table, if there is one. Fails as the heartbeats of the keeper only tell the log.
    pub async fn watch(self: &Arc<Self>) -> Result<(), Error> {
        if let (Some(table), Some(session)) = (&self.watch, self.now().1) {
            self.call(&session, WATCH, &[&session, table]).await?;
        }
        Ok(())
    }

    pub fn last_error(&self) -> Option<Error> {
        self.kept().error.take()
    }

    // ---- the keeper's connection ----

    /// Tells the core of an event, and does what follows from it.
    pub fn event(self: &Arc<Self>, happened: impl FnOnce(&mut Core, Duration)) {
        let mut kept = self.kept();
        let now = self.began.elapsed();
        kept.core.chance = (RandomState::new().hash_one(now) >> 11) as f64 / (1u64 << 53) as f64;
        happened(&mut kept.core, now);
        for action in mem::take(&mut kept.core.actions) {
            match action {
                Action::Cancel => mem::take(&mut kept.scopes).cancel(),
                Action::Ask => self.asks.send_modify(|asks| *asks += 1),
                Action::Warn(why) => log!(warn, "eskit_lease {}: {why}", self.name),
                Action::Disconnect => (kept.line, kept.job) = (None, None),
                Action::Connect => kept.job = Some(self.spawn(self.clone().connect())),
                call => kept.job = kept.line.clone().map(|line| self.spawn(self.clone().ask(line, call))),
            }
        }
        let state = kept.core.state(now);
        if state == State::Closed {
            (kept.line, kept.job) = (None, None);
        }
        self.due.send_replace(kept.core.deadline());
        if mem::replace(&mut kept.told, state) != state {
            drop(kept);
            log!(info, "eskit_lease {}: {state:?}", self.name);
            if let Some(on_state) = &self.on_state {
                let _ = catch_unwind(AssertUnwindSafe(|| on_state(state))); // a panic must not end the keeper
            }
        }
    }

    /// Ticks when the core needs it, whatever the connections do.
    async fn keep_time(self: Arc<Self>, open: CancellationToken) {
        let mut changes = self.due.subscribe();
        while self.now().0 != State::Closed {
            let due = *changes.borrow_and_update();
            let until = self.began + due.unwrap_or_default();
            tokio::select! {
                () = sleep_until(until.into()), if due.is_some() => self.event(|core, now| core.tick(now)),
                () = open.cancelled(), if self.closing.get().is_none() => {
                    self.stop.cancel();
                    self.closing.get_or_init(Instant::now);
                    tokio::spawn(self.clone().close());
                }
                Ok(()) = changes.changed() => (),
            }
        }
    }

    async fn connect(self: Arc<Self>) {
        match self.new_line().await {
            Ok(line) => {
                self.kept().line = Some(line);
                self.event(|core, now| core.connected(now));
            }
            Err(error) => self.failed(error, None),
        }
    }

    async fn ask(self: Arc<Self>, line: Line, call: Action) {
        let (session, ttl) = (self.now().1.unwrap_or_default(), in_ms(self.ttl));
        let done = match (call, &self.watch) {
            (Action::Open { takeover }, _) => line.query(OPEN, &[&self.name, &ttl, &takeover.to_string()]).await,
            (Action::Wait { timeout, revision }, _) => {
                line.query(WAIT, &[&session, &revision.to_string(), &in_ms(timeout)]).await
            }
            (_, Some(table)) => match line.query(WATCH, &[&session, table]).await {
                Err(error) if cannot_watch(&error) => {
                    log!(warn, "eskit_lease {}: cannot watch {table}: {}", self.name, with_causes(&error));
                    line.query(BEAT, &[&session]).await
                }
                done => done,
            },
            (_, None) => line.query(BEAT, &[&session]).await,
        };
        match done.map_err(Error::from).and_then(|rows| answer_of(rows.first())) {
            Ok(answer) => self.event(|core, now| core.answered(now, &answer)),
            Err(error) => self.failed(error, Some(line)),
        }
    }

    /// Tells the core that its call has failed, or that it has no connection.
    fn failed(self: &Arc<Self>, error: Error, line: Option<Line>) {
        let sqlstate = error.of_server().filter(|_| line.is_some_and(|line| line.is_open())).map(str::to_owned);
        if sqlstate.is_none() && self.kept().line.take().is_some() {
            log!(warn, "eskit_lease {}: lost the connection: {}", self.name, with_causes(&error));
        }
        self.kept().error = Some(error);
        self.event(|core, now| match sqlstate {
            Some(sqlstate) => core.failed(now, &sqlstate),
            None => core.disconnected(now),
        });
    }

    /// Connects, in a task of its own: the user's function may panic.
    async fn new_line(self: &Arc<Self>) -> Result<Line, Error> {
        let keeper = self.clone();
        let task = AbortOnDropHandle::new(self.runtime.spawn(async move { (keeper.connect)(keeper.ttl / 2).await }));
        let made = timeout(self.ttl / 2, task).await.map_err(|_| timed_out())?;
        let (client, driver) = made.map_err(|panic| Error::Other(panic.into()))??;
        Ok(Line::new(client, driver))
    }

    // ---- the second connection ----

    /// Makes a call for a session. One that breaks is repeated until the session is known to have ended; when the
    /// keeper closes, for half of the TTL.
    pub async fn call(self: &Arc<Self>, session: &str, sql: &str, args: &[&str]) -> Result<Vec<Row>, Error> {
        let mut pause = Duration::from_millis(100);
        loop {
            let gives_up = self.closing.get().is_some_and(|closing| closing.elapsed() > self.ttl / 2);
            match self.call_once(session, sql, args).await {
                Err(error) if error.passes() && !gives_up => {
                    log!(debug, "eskit_lease {}: repeats {sql}: {}", self.name, with_causes(&error));
                }
                done => return done,
            }
            sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }

    /// Makes a call that gives something back, and warns if it fails; it has no FROM. Its wait for fenced transactions is
    /// limited: the server does not notice that a call is given up, and would go on waiting beside the next one.
    pub async fn give_back(self: &Arc<Self>, session: &str, sql: &str, args: &[&str]) -> Result<(), Error> {
        let limit = (self.ttl / 4).as_millis();
        let limited = format!("{sql} FROM set_config('lock_timeout', '{limit} ms', true)");
        self.call(session, &limited, args).await.map(drop).inspect_err(|error| self.warn(sql, error))
    }

    /// Makes a call that tells of a failure by the text $1; by another if the server cannot store that one.
    pub async fn fail(self: &Arc<Self>, session: &str, sql: &str, error: &str, args: &[&str]) {
        for text in [&*error.replace('\0', "\u{fffd}"), "the error's text could not be stored"] {
            match self.call(session, sql, &[&[text], args].concat()).await {
                Err(error) if error.of_server().is_some_and(|code| code != "LF001") => self.warn(sql, &error),
                done => return done.map_or_else(|error| self.warn(sql, &error), drop),
            }
        }
    }

    /// Warns that a call has failed, unless there is nothing more to end or to give back.
    fn warn(&self, sql: &str, error: &Error) {
        if !matches!(error, Error::Lost(_)) && error.of_server() != Some("LF001") {
            log!(warn, "eskit_lease {}: {sql}: {}", self.name, with_causes(error));
        }
    }

    pub async fn call_once(self: &Arc<Self>, session: &str, sql: &str, args: &[&str]) -> Result<Vec<Row>, Error> {
        let mut second = self.second.lock().await;
        if self.now().1.is_none_or(|now| now != session) {
            return Err(Error::lost());
        }
        let call = async {
            let line = match second.0.take().filter(Line::is_open) {
                Some(line) => line,
                None => self.new_line().await?,
            };
            Ok(second.0.insert(line).query(sql, args).await?)
        };
        let done = timeout(self.ttl / 2, call).await.unwrap_or_else(|_| Err(timed_out()));
        match &done {
            Err(Error::Lost(_)) => self.heard(session, self.began.elapsed(), &Answer::default()),
            Err(error) if error.of_server().is_none() => second.0 = None,
            _ => (),
        }
        if self.now().0 == State::Closed {
            *second = (None, None); // which was being made when the keeper closed
            return done;
        }
        let keeper = self.clone();
        second.1 = Some(self.spawn(async move {
            sleep(IDLE).await;
            keeper.second.lock().await.0 = None;
        }));
        done
    }

    /// Tells the core what a call on another connection answered about a session.
    pub fn heard(self: &Arc<Self>, session: &str, sent: Duration, answer: &Answer) {
        self.event(|core, now| {
            if core.session.as_deref() == Some(session) {
                core.heard(now, sent, answer);
            }
        });
    }

    /// Ends what the session has, and closes it: the keeper opens another.
    pub async fn replace_session(self: &Arc<Self>, session: &str) -> Result<(), Error> {
        self.event(|core, _| core.replaces = true);
        mem::take(&mut self.kept().scopes).cancel();
        self.end_session(session).await
    }

    /// Closes a session. The keeper opens another, unless it closes, too.
    pub async fn end_session(self: &Arc<Self>, session: &str) -> Result<(), Error> {
        self.give_back(session, "SELECT eskit_lease.session_close($1::uuid)", &[session]).await?;
        self.heard(session, self.began.elapsed(), &Answer::default());
        Ok(())
    }

    // ---- the end ----

    pub async fn drain(self: &Arc<Self>, within: Duration) {
        self.stop.cancel();
        let session = self.now().1.unwrap_or_default();
        self.event(|core, _| core.drain());
        let args = [&*session];
        let drain = self.call(&session, "SELECT eskit_lease.session_drain($1::uuid)", &args);
        let _ = timeout(within, async { tokio::join!(drain, self.work.wait()) }).await;
        self.clone().close().await;
    }

    pub async fn close(self: Arc<Self>) {
        self.stop.cancel();
        self.closing.get_or_init(Instant::now);
        self.event(|core, _| core.drain());
        let session = self.now().1.unwrap_or_default();
        mem::take(&mut self.kept().scopes).cancel();
        let end = async {
            let _ = timeout(self.ttl / 2, self.work.wait()).await;
            self.end_session(&session).await
        };
        let _ = timeout(self.ttl, end).await;
        self.event(|core, _| core.close());
        if let Ok(mut second) = self.second.try_lock() {
            *second = (None, None);
        }
    }

    /// Starts a task that ends when its handle is dropped.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(self.runtime.spawn(task))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

pub(crate) fn timed_out() -> Error {
    Error::Other(io::Error::from(io::ErrorKind::TimedOut).into())
}

/// Tells whether the table cannot be watched: whatever the reason, the session still needs its heartbeat.
fn cannot_watch(error: &tokio_postgres::Error) -> bool {
    error.code().map(SqlState::code).is_some_and(|code| is_of_statement(code) && !ENDED.contains(&code))
}

/// Reads the columns that all heartbeats have.
pub(crate) fn answer_of(row: Option<&Row>) -> Result<Answer, Error> {
    let Some(row) = row else {
        return Ok(Answer::default());
    };
    let trust: Option<i32> = row.try_get("trust_ms")?;
    Ok(Answer {
        alive: row.try_get("alive")?,
        trust: Duration::from_millis(trust.and_then(|trust| trust.try_into().ok()).unwrap_or(0)),
        revision: row.try_get::<_, Option<_>>("revision")?.unwrap_or(0),
        reason: row.try_get("reason")?,
        session: row.try_get("session").ok(),
    })
}
