//! `run`: a program under a lease.

use crate::notify::notify;
use crate::options::Run;
use crate::program::{Program, Reaper};
use crate::{Failure, IN_DOUBT, TEMPORARY, UNAVAILABLE, USAGE};
use eskit_lease::{BoxError, Leases, Partition, Scope};
use rustix::process::Signal;
use std::cell::Cell;
use std::ffi::OsString;
use std::future::pending;
use std::io::{ErrorKind, Write, stderr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, watch};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The signals that end the command while no program runs; the first three also end programs.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP];
const LOOK: Duration = Duration::from_millis(100);
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How a program has ended.
enum End {
    /// By itself, or as it was told to.
    Exited(u8),
    /// With its lease, or with the trust in it.
    Lost,
}

/// What all programs of the command share.
struct Runner {
    leases: Leases,
    reaper: Reaper,
    signals: broadcast::Sender<Signal>,
    stops: Arc<OnceLock<Signal>>, // the first signal that was to end the programs
    cannot_start: watch::Sender<Option<(u8, String)>>,
    program: Vec<OsString>,
    grace: Duration,
    margin: Duration, // from SIGKILL to the end of the trust
    stop_timeout: Option<Duration>,
    quiet: bool,
}

pub async fn run(dsn: &str, run: Run) -> Result<u8, Failure> {
    let grace = run.grace.unwrap_or(run.ttl / 8);
    if grace >= run.ttl / 2 {
        return Err(Failure::new(USAGE, "--grace must be less than half of --ttl"));
    }
    let (signals, stops) = pass_on().map_err(|error| Failure::new(UNAVAILABLE, error))?;
    let reaper = Reaper::start().map_err(|error| Failure::new(UNAVAILABLE, error))?;
    let mut settings = Leases::builder(dsn).ttl(run.ttl).takeover(run.takeover).patience(run.patience);
    if let Some(name) = &run.name {
        settings = settings.name(name);
    }
    let leases = tokio::select! {
        biased; // a signal is told only once
        signal = one_of(&signals, &ENDING) => return Ok(code_of(signal)),
        leases = settings.open() => leases?,
    };
    let (program, stop_timeout, quiet) = (run.program.clone(), run.stop_timeout, run.quiet);
    let margin = run.ttl / 80;
    let (leased, cannot_start) = (leases.clone(), watch::Sender::new(None));
    let runner =
        Runner { leases: leased, reaper, signals, stops, cannot_start, program, grace, margin, stop_timeout, quiet };
    notify("READY=1");
    let done = match (&run.lead, &run.group, &run.once) {
        (Some(name), ..) => runner.lead(name, run.restart, run.no_wait).await,
        (_, Some(group), _) => Arc::new(runner).group(group).await,
        (.., key) => runner.once(key.as_deref().unwrap_or_default()).await,
    };
    notify("STOPPING=1");
    leases.close().await;
    done
}

impl Runner {
    async fn lead(&self, name: &str, restart: bool, no_wait: bool) -> Result<u8, Failure> {
        loop {
            self.tell(&format!("waits for {name}"));
            let lead = tokio::select! {
                biased;
                signal = one_of(&self.signals, &ENDING) => return Ok(code_of(signal)),
                lead = self.leases.lead(name), if !no_wait => lead?,
                lead = self.leases.try_lead(name), if no_wait => {
                    lead?.ok_or_else(|| Failure::new(TEMPORARY, format!("another process leads {name}")))?
                }
            };
            self.tell(&format!("leads {name} under fence {}", lead.fence()));
            let end = match self.start(name, lead.fence(), lead.session(), None) {
                Ok(program) => Ok(self.attend(&program, lead.token(), || trust_in(&lead)).await),
                Err(failure) => Err(failure),
            };
            drop(lead); // is released in the background: without a network that may take long
            match end? {
                End::Exited(code) => return Ok(code),
                End::Lost if restart && self.stops.get().is_none() => self.tell(&format!("has lost {name}")),
                End::Lost => return Err(Failure::new(TEMPORARY, format!("the lease {name} was lost"))),
            }
        }
    }

    async fn group(self: Arc<Self>, group: &str) -> Result<u8, Failure> {
        let runner = self.clone();
        let mut member = self.leases.join(group, move |partition| runner.clone().partition(partition));
        let mut cannot_start = self.cannot_start.subscribe();
        self.tell(&format!("joins {group}"));
        tokio::select! {
            biased;
            _ = one_of(&self.signals, &ENDING[..3]) => (),
            ended = &mut member => return ended.map(|()| 0).map_err(Failure::from),
            Ok(_) = cannot_start.changed() => (),
        }
        self.tell(&format!("leaves {group}"));
        self.leases.drain(self.stop_timeout.unwrap_or(A_YEAR)).await;
        match self.cannot_start.send_replace(None) {
            Some((code, why)) => Err(Failure { code, why }),
            None => Ok(0),
        }
    }

    async fn partition(self: Arc<Self>, partition: Partition) -> Result<(), BoxError> {
        let (group, number) = (partition.name(), partition.number());
        let program = self.start(group, partition.fence(), partition.session(), Some(number));
        let program = program.map_err(|failure| {
            self.cannot_start.send_replace(Some((failure.code, failure.why)));
            "the program cannot be started"
        })?;
        match self.attend(&program, partition.token(), || trust_in(&partition)).await {
            End::Exited(code) if !partition.token().is_cancelled() && self.stops.get().is_none() => {
                Err(self.complain(&format!("the program of partition {number} has ended with {code}")))
            }
            _ => Ok(()),
        }
    }

    async fn once(&self, key: &str) -> Result<u8, Failure> {
        let (begun, exited, lost) = (Cell::new(false), Cell::new(None), CancellationToken::new());
        let never = CancellationToken::new();
        let once = self.leases.once(key, async |fence| {
            begun.set(true);
            let session = self.leases.session().ok_or("no session")?;
            let program = self.start(key, fence, &session, None).map_err(|failure| {
                exited.set(Some(failure.code));
                self.complain(&failure.why)
            })?;
            match self.attend(&program, &never, || Some(self.leases.trusted_until())).await {
                End::Exited(code) => exited.set(Some(code)),
                End::Lost => {
                    lost.cancel();
                    pending::<()>().await; // what it has done is in doubt, so the key stays taken
                }
            }
            match exited.get() {
                Some(0) => Ok("{\"exit\": 0}"),
                _ => Err("the program has failed".into()),
            }
        });
        tokio::pin!(once);
        let done = loop {
            tokio::select! {
                biased;
                signal = one_of(&self.signals, &ENDING) => if !begun.get() {
                    return Ok(code_of(signal));
                },
                done = &mut once => break done,
                () = lost.cancelled() => {
                    return Err(Failure::new(TEMPORARY, format!("the session was lost, so {key} is in doubt")));
                }
            }
        };
        match (done, exited.get()) {
            (Err(_), Some(code @ 1..)) => Ok(code),
            (Err(error), _) => Err(error.into()), // also of a success that could not be stored
            (Ok(once), _) if once.first => Ok(0),
            (Ok(once), _) => {
                println!("{key}: {}{}", once.state, once.result.map(|result| format!(" {result}")).unwrap_or_default());
                Ok(match &*once.state {
                    "done" => 0,
                    "running" => TEMPORARY,
                    _ => IN_DOUBT,
                })
            }
        }
    }

    fn start(&self, name: &str, fence: i64, session: &str, partition: Option<i32>) -> Result<Program, Failure> {
        let mut variables = vec![
            ("ESKIT_LEASE_NAME", name.to_owned()),
            ("ESKIT_LEASE_FENCE", fence.to_string()),
            ("ESKIT_LEASE_SESSION", session.to_owned()),
        ];
        variables.extend(partition.map(|number| ("ESKIT_LEASE_PARTITION", number.to_string())));
        self.reaper.spawn(&self.program, &variables).map_err(|error| {
            let name = self.program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
            Failure::new(code, format!("{name}: {error}"))
        })
    }

    /// Waits for the end of a program, passes signals on to it, and ends it before its lease ends.
    async fn attend<T>(&self, program: &Program, told: &CancellationToken, trusted_until: T) -> End
    where
        T: Fn() -> Option<Instant>,
    {
        let mut signals = self.signals.subscribe();
        let (mut is_ending, mut runs_out, mut kill_at) = (false, false, None);
        loop {
            let now = Instant::now();
            let over = trusted_until().and_then(|until| until.checked_sub(self.margin)).filter(|over| now < *over);
            let Some(over) = over else {
                program.signal(Signal::KILL);
                program.ended().await;
                return End::Lost;
            };
            if !runs_out && now + self.grace >= over {
                runs_out = true;
                program.signal(Signal::TERM);
            }
            if kill_at.is_some_and(|kill_at| now >= kill_at) {
                (kill_at, _) = (None, program.signal(Signal::KILL));
            }
            let mut wake_at = if runs_out { over } else { over - self.grace };
            if is_ending {
                wake_at = wake_at.min(now + LOOK); // `told` tells no more of a loss
            }
            tokio::select! {
                code = program.ended() => return if runs_out { End::Lost } else { End::Exited(code) },
                Ok(signal) = signals.recv() => {
                    program.signal(signal);
                    if ENDING[..3].contains(&signal) {
                        is_ending = true;
                        kill_at = self.stop_timeout.map(|timeout| now + timeout);
                    }
                }
                () = told.cancelled(), if !is_ending => {
                    is_ending = true;
                    if trusted_until().is_some() {
                        program.signal(Signal::TERM);
                        kill_at = self.stop_timeout.map(|timeout| now + timeout);
                    }
                }
                () = sleep_until(kill_at.map_or(wake_at, |kill_at| kill_at.min(wake_at)).into()) => (),
            }
        }
    }

    fn tell(&self, what: &str) {
        notify(&format!("STATUS={}", what.replace('\n', " "))); // a line for each variable
        if !self.quiet {
            say(what);
        }
    }

    fn complain(&self, why: &str) -> BoxError {
        say(why);
        why.into()
    }
}

/// Writes to the standard error. A closed one ends no program.
pub fn say(what: &str) {
    let _ = writeln!(stderr(), "eskit-lease: {what}");
}

/// Returns until when a scope is trusted; None if its lease is lost.
fn trust_in(scope: &Scope) -> Option<Instant> {
    scope.is_trusted().then(|| scope.trusted_until())
}

/// Takes the signals that are passed on.
fn pass_on() -> std::io::Result<(broadcast::Sender<Signal>, Arc<OnceLock<Signal>>)> {
    let ((sender, _), stops) = (broadcast::channel(16), Arc::new(OnceLock::new()));
    let kinds = [
        (Signal::TERM, SignalKind::terminate()),
        (Signal::INT, SignalKind::interrupt()),
        (Signal::QUIT, SignalKind::quit()),
        (Signal::HUP, SignalKind::hangup()),
        (Signal::USR1, SignalKind::user_defined1()),
        (Signal::USR2, SignalKind::user_defined2()),
    ];
    for (number, kind) in kinds {
        let (mut stream, sender, stops) = (signal(kind)?, sender.clone(), stops.clone());
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if ENDING[..3].contains(&number) {
                    let _ = stops.set(number);
                }
                let _ = sender.send(number); // unless nobody waits for one
            }
        });
    }
    Ok((sender, stops))
}

async fn one_of(signals: &broadcast::Sender<Signal>, of: &[Signal]) -> Signal {
    let mut signals = signals.subscribe();
    loop {
        match signals.recv().await {
            Ok(signal) if of.contains(&signal) => return signal,
            _ => (),
        }
    }
}

fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(TEMPORARY)
}
