//! The keeper of one session: its connection, and a second one for all other calls.

use crate::core::{Action, Answer, Core, ENDED};
use crate::error::{Error, NO_TEXT, State, with_causes};
use crate::line::{Arg, Connect, Line};
use crate::settings::{Settings, default_name};
use std::collections::{HashMap, HashSet, hash_map::RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{hash::BuildHasher, io, mem, time::Duration, time::Instant};
use tokio::{runtime::Handle, sync, sync::watch, time::sleep, time::sleep_until, time::timeout};
use tokio_postgres::Row;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle, task::TaskTracker};

const IDLE: Duration = Duration::from_secs(10);
const OPEN: &str = "SELECT true AS alive, trust_ms, revision, '' AS reason, session::text \
                    FROM eskit_lease.session_open($1, $2::interval, takeover => $3::boolean)";
const WAIT: &str = "SELECT * FROM eskit_lease.session_wait($1::uuid, $2::bigint, $3::interval)";
const BEAT: &str = "SELECT * FROM eskit_lease.session_heartbeat($1::uuid)";
pub(crate) const WATCH: &str = "SELECT * FROM eskit_lease.session_watch($2::uuid, $1::regclass)";

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

/// Ends when it is dropped.
type Task = AbortOnDropHandle<()>;

/// A session under which work may begin.
pub(crate) struct Trusted {
    pub session: String,
    pub scopes: CancellationToken, // the parent of the scopes that begin now
}

/// What changes, behind one lock.
pub(crate) struct Kept {
    pub core: Core,
    pub error: Option<Error>, // of the last try to connect or to open
    pub used: HashSet<i64>,   // fences that the server has not taken back: nothing may begin under them again
    line: Option<Line>,
    job: Option<Task>,         // what the keeper's connection does
    timer: Option<Task>,       // ticks when the core needs it
    scopes: CancellationToken, // the parent of all scopes that were handed out since the last cancel
    told: State,
    turns: HashMap<(&'static str, String), Arc<sync::Mutex<()>>>,
}

pub(crate) struct Keeper {
    pub name: String,
    pub settings: Settings,
    pub runtime: Handle,
    pub asks: watch::Sender<u64>,
    pub stop: CancellationToken, // it drains
    pub work: TaskTracker,       // what must end before the session is closed
    pub began: Instant,
    connect: Connect,
    closed: CancellationToken,
    kept: Mutex<Kept>,
    second: sync::Mutex<(Option<Line>, Option<Task>)>, // the second connection, and what closes it when it is idle
}

/// A process's keeper: one session with one heartbeat. Clones share it. It closes in the background when all clones,
/// leads and verbs at work are dropped; [`close`](Leases::close) also waits for that.
#[derive(Clone)]
pub struct Leases {
    pub(crate) keeper: Arc<Keeper>,
    _open: Option<Arc<Open>>, // None in what the keeper does by itself
}

/// Closes the keeper when it is dropped.
struct Open(Leases);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.keeper.runtime.spawn(self.0.clone().end(Duration::ZERO));
    }
}

impl Leases {
    pub(crate) fn start(connect: Connect, settings: Settings) -> Self {
        let core = Core::start(settings.ttl, settings.takeover, settings.watch.is_some());
        let (scopes, told, used, turns) = (CancellationToken::new(), State::Starting, HashSet::new(), HashMap::new());
        let keeper = Arc::new(Keeper {
            name: settings.name.clone().unwrap_or_else(default_name),
            settings,
            runtime: Handle::current(),
            asks: watch::Sender::new(0),
            stop: CancellationToken::new(),
            work: TaskTracker::new(),
            began: Instant::now(),
            connect,
            closed: CancellationToken::new(),
            kept: Mutex::new(Kept { core, error: None, used, line: None, job: None, timer: None, scopes, told, turns }),
            second: sync::Mutex::default(),
        });
        keeper.work.close();
        let inside = Leases { keeper, _open: None };
        inside.event(|_, _| ());
        Leases { _open: Some(Arc::new(Open(inside.clone()))), ..inside }
    }

    // ---- what others ask ----

    /// Returns the consumer's name, by default the host, the process id and a random part.
    pub fn name(&self) -> &str {
        &self.keeper.name
    }

    /// Returns the present state.
    pub fn state(&self) -> State {
        self.kept().core.state(self.keeper.began.elapsed())
    }

    /// Returns the session's handle; None if there is no session. Keep it private.
    pub fn session(&self) -> Option<String> {
        self.kept().core.session.clone()
    }

    /// Returns when the trust in the session ends, unless the server is heard again before.
    pub fn trusted_until(&self) -> Instant {
        self.keeper.began + self.kept().core.trusted_until
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.keeper.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the clock, as the keeper's own tick may be late.
    pub(crate) fn look_at_clock(&self) {
        if Instant::now() >= self.trusted_until() {
            self.event(|core, now| core.tick(now));
        }
    }

    /// Returns the session, if it is trusted.
    pub(crate) fn trusted(&self) -> Option<Trusted> {
        self.look_at_clock();
        let kept = self.kept();
        let is_trusted = matches!(kept.core.state(self.keeper.began.elapsed()), State::Trusted | State::Draining);
        let session = kept.core.session.clone().filter(|_| is_trusted)?;
        Some(Trusted { session, scopes: kept.scopes.clone() })
    }

    /// Returns the turn for a name. The calls of a process for one name follow one another: they would get one fence.
    pub(crate) fn turn(&self, verb: &'static str, name: &str) -> Arc<sync::Mutex<()>> {
        let turns = &mut self.kept().turns;
        if turns.len() == turns.capacity() {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry((verb, name.to_owned())).or_default().clone()
    }

    // ---- the keeper's connection ----

    /// Tells the core of an event, and does what follows from it.
    pub(crate) fn event(&self, happened: impl FnOnce(&mut Core, Duration)) {
        let mut kept = self.kept();
        let now = self.keeper.began.elapsed();
        kept.core.chance = (RandomState::new().hash_one(now) >> 11) as f64 / (1u64 << 53) as f64;
        happened(&mut kept.core, now);
        for action in mem::take(&mut kept.core.actions) {
            match action {
                Action::Cancel => mem::take(&mut kept.scopes).cancel(),
                Action::Ask => self.keeper.asks.send_modify(|asks| *asks += 1),
                Action::Warn(why) => log!(warn, "eskit_lease {}: {why}", self.keeper.name),
                Action::Disconnect => (kept.line, kept.job) = (None, None),
                Action::Connect => kept.job = Some(self.spawn(self.inside().connect())),
                call => kept.job = kept.line.clone().map(|line| self.spawn(self.inside().ask(line, call))),
            }
        }
        let state = kept.core.state(now);
        if state == State::Closed {
            (kept.line, kept.job) = (None, None);
        }
        kept.timer = kept.core.deadline().map(|due| self.spawn(self.inside().tick(due)));
        if mem::replace(&mut kept.told, state) != state {
            drop(kept);
            log!(info, "eskit_lease {}: {state:?}", self.keeper.name);
            if let Some(on_state) = &self.keeper.settings.on_state {
                let _ = catch_unwind(AssertUnwindSafe(|| on_state(state))); // a panic must not end the keeper
            }
        }
    }

    async fn tick(self, due: Duration) {
        sleep_until((self.keeper.began + due).into()).await;
        self.event(|core, now| core.tick(now));
    }

    async fn connect(self) {
        match self.new_line().await.map(|line| self.kept().line = Some(line)) {
            Ok(()) => self.event(|core, now| core.connected(now)),
            Err(error) => self.failed(error, None),
        }
    }

    async fn ask(self, line: Line, call: Action) {
        let (session, ttl) = (self.session().unwrap_or_default(), in_ms(self.keeper.settings.ttl));
        let done = match call {
            Action::Open { takeover } => line.query(OPEN, &[&self.keeper.name, &ttl, &takeover]).await,
            Action::Wait { timeout, revision } => line.query(WAIT, &[&session, &revision, &in_ms(timeout)]).await,
            _ => self.beat(&line, &session).await,
        };
        match done.map(|rows| rows.first().and_then(answer_of).unwrap_or_default()) {
            Ok(answer) => self.event(|core, now| core.answered(now, &answer)),
            Err(error) => self.failed(error, Some(line)),
        }
    }

    async fn beat(&self, line: &Line, session: &str) -> Result<Vec<Row>, Error> {
        if let Some(table) = &self.keeper.settings.watch {
            match line.query(WATCH, &[table, &session]).await {
                // Whatever the reason, the session still needs its heartbeat.
                Err(error) if error.of_server().is_some_and(|code| !ENDED.contains(&code)) => {
                    log!(warn, "eskit_lease {}: cannot watch {table}: {}", self.keeper.name, with_causes(&error));
                }
                done => return done,
            }
        }
        line.query(BEAT, &[&session]).await
    }

    /// Tells the core that its call has failed, or that it has no connection.
    fn failed(&self, error: Error, line: Option<Line>) {
        let sqlstate = error.of_server().filter(|_| line.is_some_and(|line| line.is_open())).map(str::to_owned);
        if sqlstate.is_none() && self.kept().line.take().is_some() {
            log!(warn, "eskit_lease {}: lost the connection: {}", self.keeper.name, with_causes(&error));
        }
        self.kept().error = Some(error);
        self.event(|core, now| match sqlstate {
            Some(sqlstate) => core.failed(now, &sqlstate),
            None => core.disconnected(now),
        });
    }

    /// Connects, in a task of its own: the user's function may panic.
    async fn new_line(&self) -> Result<Line, Error> {
        let (keeper, limit) = (self.keeper.clone(), self.keeper.settings.ttl / 2);
        let task = AbortOnDropHandle::new(self.keeper.runtime.spawn(async move { (keeper.connect)(limit).await }));
        let made = timeout(limit, task).await.map_err(|_| timed_out())?;
        let (client, driver) = made.map_err(|panic| Error::Other(panic.into()))??;
        Ok(Line::new(client, driver))
    }

    // ---- the second connection ----

    /// Makes a call for a session. One that breaks is repeated until the session is known to have ended.
    pub(crate) async fn call(&self, session: &str, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
        let mut pause = Duration::from_millis(100);
        loop {
            match self.call_once(session, sql, args).await {
                Err(error) if error.passes() => {
                    log!(debug, "eskit_lease {}: repeats {sql}: {}", self.keeper.name, with_causes(&error));
                }
                done => return done,
            }
            sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }

    pub(crate) async fn call_once(&self, session: &str, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
        let mut second = self.keeper.second.lock().await;
        let (sent, keeper) = (self.keeper.began.elapsed(), self.keeper.clone());
        if self.session().is_none_or(|now| now != session) {
            return Err(Error::lost());
        }
        let call = async {
            let line = match second.0.take().filter(Line::is_open) {
                Some(line) => line,
                // Whatever its SQLSTATE, it is no answer to the call.
                None => self.new_line().await.map_err(|error| Error::Other(error.into()))?,
            };
            second.0.insert(line).query(sql, args).await
        };
        let limited = timeout(self.keeper.settings.ttl / 2, call);
        let done = match self.keeper.closed.run_until_cancelled(limited).await {
            Some(done) => done.unwrap_or_else(|_| Err(timed_out())),
            None => Err(Error::Closed),
        };
        let answer = done.as_ref().ok().and_then(|rows| answer_of(rows.first()?));
        let done = if answer.as_ref().is_some_and(|answer| !answer.alive) { Err(Error::lost()) } else { done };
        match (&done, answer) {
            (Ok(_), Some(answer)) => self.event(|core, now| core.heard(now, session, sent, &answer)),
            (Err(Error::Lost(_)), _) => self.event(|core, now| core.heard(now, session, sent, &Answer::default())),
            (Err(error), _) if error.of_server().is_none() => second.0 = None,
            _ => (),
        }
        second.1 = Some(self.spawn(async move {
            sleep(IDLE).await;
            keeper.second.lock().await.0 = None;
        }));
        done
    }

    /// Makes a call that gives something back, and warns if it fails; it has no FROM. Its wait for fenced transactions is
    /// limited: the server does not notice that a call is given up, and would go on waiting beside the next one.
    pub(crate) async fn give_back(&self, session: &str, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
        let limited = format!("{sql} FROM set_config('lock_timeout', '{}', true)", in_ms(self.keeper.settings.ttl / 4));
        self.call(session, &limited, args).await.inspect_err(|error| {
            if !matches!(error, Error::Lost(_)) && error.of_server() != Some("LF001") {
                log!(warn, "eskit_lease {}: {sql}: {}", self.keeper.name, with_causes(error));
            }
        })
    }

    /// Gives something back as failed, by the error $1; by another text if the server cannot store that one. Returns
    /// whether the server has taken it.
    pub(crate) async fn fail(&self, session: &str, sql: &str, error: &str, args: &[Arg<'_>]) -> bool {
        for text in [&*error.replace('\0', "\u{fffd}"), NO_TEXT] {
            if self.give_back(session, sql, &[&[&text as Arg<'_>], args].concat()).await.is_ok() {
                return true;
            }
        }
        false
    }

    // ---- the end ----

    /// Cancels the scopes, and closes the session. The keeper opens another, unless it drains.
    pub(crate) async fn end_session(&self, session: &str) -> Result<(), Error> {
        self.event(|core, _| core.replaces = true);
        mem::take(&mut self.kept().scopes).cancel();
        self.give_back(session, "SELECT eskit_lease.session_close($1::uuid)", &[&session]).await?;
        self.event(|core, now| core.heard(now, session, now, &Answer::default()));
        Ok(())
    }

    /// Begins nothing new, and tells all scopes to end. After `within` it cancels those that have not, waits for their
    /// work, and closes the session.
    pub(crate) async fn end(self, within: Duration) {
        let session = self.session().unwrap_or_default();
        self.event(|core, _| core.drain());
        let tell = async {
            if !within.is_zero() {
                let _ = self.call(&session, "SELECT eskit_lease.session_drain($1::uuid)", &[&session]).await;
            }
        };
        let end = async {
            self.keeper.stop.cancel(); // after the call: no scope releases before it
            self.keeper.work.wait().await;
        };
        let _ = timeout(within, async { tokio::join!(tell, end) }).await;
        mem::take(&mut self.kept().scopes).cancel();
        let close = async {
            let _ = timeout(self.keeper.settings.ttl / 2, self.keeper.work.wait()).await;
            self.end_session(&session).await
        };
        let _ = timeout(self.keeper.settings.ttl, close).await;
        self.event(|core, _| core.close());
        self.keeper.closed.cancel();
        *self.keeper.second.lock().await = (None, None);
    }

    /// Returns what does not keep the keeper open.
    fn inside(&self) -> Self {
        Leases { keeper: self.keeper.clone(), _open: None }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        Task::new(self.keeper.runtime.spawn(task))
    }
}

fn in_ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

pub(crate) fn timed_out() -> Error {
    Error::Other(io::Error::from(io::ErrorKind::TimedOut).into())
}

/// Reads what an answer tells of the session; None if it tells nothing.
fn answer_of(row: &Row) -> Option<Answer> {
    let trust: Option<i32> = row.try_get("trust_ms").ok()?;
    Some(Answer {
        alive: row.try_get::<_, Option<_>>("alive").ok()??,
        trust: Duration::from_millis(trust.and_then(|trust| trust.try_into().ok()).unwrap_or(0)),
        revision: row.try_get::<_, Option<_>>("revision").ok()?.unwrap_or(0),
        reason: row.try_get("reason").ok()?,
        session: row.try_get("session").ok(),
    })
}
