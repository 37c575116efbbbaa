//! The protocol of the keeper's connection, without a connection: events with their times in, actions out.
//!
//! `clients/PROTOCOL.md` of the repository is the protocol in words, and `clients/vectors` is what this core must do.
//! Times are durations since the keeper began, on a monotonic clock.

use crate::error::State;
use std::{mem, time::Duration};

const NEVER: Duration = Duration::ZERO;
const MIN_CONNECT_PAUSE: Duration = Duration::from_millis(100);
const MAX_CONNECT_PAUSE: Duration = Duration::from_secs(1);
const BEAT: Duration = Duration::from_secs(1); // between heartbeats where waits are refused
const SHORTEST_WAIT: Duration = Duration::from_millis(100); // a shorter one would be a poll
const FIRST_REOPEN: Duration = Duration::from_secs(1);
const LONGEST_REOPEN: Duration = Duration::from_secs(60);
const ERROR_PAUSE: Duration = Duration::from_secs(1);
const CUT_SHORT: &str = "57014";
pub(crate) const ENDED: [&str; 2] = ["LF003", "55000"]; // 55000: a server before 0.3.0

/// What a heartbeat, a wait or `session_open` answers.
#[derive(Default)]
pub(crate) struct Answer {
    pub alive: bool,
    pub trust: Duration,
    pub revision: i64,
    pub reason: String,
    pub session: Option<String>,
}

/// What the keeper must do. `Cancel` and `Ask` are for every scope.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Connect,
    Disconnect,
    Open { takeover: bool },
    Wait { timeout: Duration, revision: i64 },
    Beat,
    Cancel,
    Ask,
    Warn(String),
}

#[derive(Default)]
pub(crate) struct Core {
    pub actions: Vec<Action>, // that nobody has taken yet
    pub chance: f64,          // from 0 to 1, for the next event
    pub session: Option<String>,
    pub trusted_until: Duration,
    pub replaces: bool, // the keeper closes this session by itself, to open another: no process takes it
    ttl: Duration,
    takeover: bool,
    watches: bool, // a heartbeat names the table to watch, and the first one begins it
    revision: i64,
    draining: bool,
    connected: bool,
    closed: bool,
    call: Option<(Action, Duration, Option<String>)>, // that is under way: when it was made, for which session
    heard: Duration,                                  // when the newest call that was answered was made
    handed_out: bool,                                 // scopes may be trusting
    had_session: bool,
    opened_at: Duration,
    attempts: u32,
    next_connect: Option<Duration>,
    next_call: Duration,
    no_wait_before: Duration,
    longest_wait: Option<Duration>,
    reopen_pause: Duration,
    asks: bool, // a heartbeat must tell first whether the session still lives
}

impl Core {
    pub fn start(ttl: Duration, takeover: bool, watches: bool) -> Self {
        Core { ttl, takeover, watches, reopen_pause: FIRST_REOPEN, actions: vec![Action::Connect], ..Core::default() }
    }

    pub fn state(&self, now: Duration) -> State {
        match self.session {
            _ if self.closed => State::Closed,
            None if self.had_session => State::Lost,
            None => State::Starting,
            Some(_) if now >= self.trusted_until => State::Doubting,
            Some(_) if self.draining => State::Draining,
            Some(_) => State::Trusted,
        }
    }

    /// Returns when the next `tick` is needed; None if never.
    pub fn deadline(&self) -> Option<Duration> {
        let next = match &self.call {
            Some((_, sent, _)) => Some(*sent + self.ttl / 2),
            None if self.connected => Some(self.next_call),
            None => self.next_connect,
        };
        self.handed_out.then_some(self.trusted_until).into_iter().chain(next).min().filter(|_| !self.closed)
    }

    // ---- events ----

    pub fn connected(&mut self, now: Duration) {
        (self.connected, self.next_connect) = (true, None);
        (self.longest_wait, self.no_wait_before, self.asks) = (None, NEVER, self.session.is_some());
        self.go_on(now);
    }

    /// The connection is lost, or could not be made.
    pub fn disconnected(&mut self, now: Duration) {
        self.lose_connection(now);
        self.tick(now);
    }

    /// The answer of the call that is under way.
    pub fn answered(&mut self, now: Duration, answer: &Answer) {
        (self.attempts, self.asks) = (0, false);
        match self.end_call() {
            None => (),
            Some(_) if !answer.alive => self.end(now),
            Some((Action::Open { .. }, sent)) => {
                (self.session, self.revision) = (answer.session.clone(), answer.revision);
                (self.had_session, self.opened_at, self.asks) = (true, now, self.watches);
                self.believe(now, sent, answer.trust, false);
            }
            Some((call, sent)) => {
                if answer.reason == "wait_limit" {
                    self.no_wait_before = now + self.ttl / 3;
                }
                let is_news = answer.revision > self.revision;
                self.revision = self.revision.max(answer.revision);
                self.believe(now, sent, answer.trust, is_news);
                if !is_news && now < self.no_wait_before {
                    self.next_call = sent + BEAT.min(self.ttl / 3).mul_f64(0.75 + 0.25 * self.chance);
                } else if !is_news && call != Action::Beat && now < sent + SHORTEST_WAIT {
                    self.next_call = sent + SHORTEST_WAIT;
                }
            }
        }
        self.tick(now);
    }

    /// The call that is under way raised an error of the server, on a connection that is still good.
    pub fn failed(&mut self, now: Duration, sqlstate: &str) {
        match self.end_call() {
            None => (),
            Some((Action::Wait { .. } | Action::Beat, _)) if ENDED.contains(&sqlstate) => self.end(now),
            Some((Action::Wait { .. }, sent)) if sqlstate == CUT_SHORT => {
                (self.attempts, self.longest_wait) = (0, Some((now - sent) / 2));
            }
            Some(_) => {
                self.next_call = now + ERROR_PAUSE.min(self.ttl / 6);
                self.actions.push(Action::Warn(sqlstate.into()));
            }
        }
        self.tick(now);
    }

    /// An answer of another connection, to a call of a session that was made at `sent`.
    pub fn heard(&mut self, now: Duration, session: &str, sent: Duration, answer: &Answer) {
        match &self.session {
            Some(present) if present != session => (),
            Some(_) if answer.alive => self.believe(now, sent, answer.trust, false),
            Some(_) => self.end(now),
            None => (),
        }
        self.tick(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        if now >= self.trusted_until {
            self.cancel();
        }
        if self.call.as_ref().is_some_and(|(_, sent, _)| now >= *sent + self.ttl / 2) {
            self.lose_connection(now);
            self.actions.push(Action::Disconnect);
        }
        self.go_on(now);
    }

    pub fn drain(&mut self) {
        self.draining = true;
        if self.session.is_none() {
            self.close();
        }
    }

    /// The session was closed, or shall end by itself.
    pub fn close(&mut self) {
        self.cancel();
        self.actions.extend(mem::take(&mut self.connected).then_some(Action::Disconnect));
        (self.closed, self.call, self.session, self.trusted_until) = (true, None, None, NEVER);
    }

    // ---- steps ----

    /// Makes the next connection or call, if its time has come.
    fn go_on(&mut self, now: Duration) {
        let next = if self.connected { Some(self.next_call) } else { self.next_connect };
        if self.closed || self.call.is_some() || next.is_none_or(|next| now < next) {
            return;
        }
        if !self.connected {
            self.next_connect = None;
            return self.actions.push(Action::Connect);
        }
        if self.longest_wait.is_some_and(|longest| longest < SHORTEST_WAIT) {
            (self.no_wait_before, self.longest_wait) = (now + self.ttl / 3, None);
        }
        let action = if self.session.is_none() {
            Action::Open { takeover: self.takeover && !self.had_session }
        } else if self.asks || now < self.no_wait_before {
            Action::Beat
        } else {
            let longest = self.ttl / if now < self.trusted_until { 3 } else { 10 };
            let timeout = self.longest_wait.map_or(longest, |cut| cut.min(longest));
            Action::Wait { timeout, revision: self.revision }
        };
        self.call = Some((action.clone(), now, self.session.clone()));
        self.actions.push(action);
    }

    /// Ends the call that is under way. None if there is none, or if its session is known to have ended meanwhile.
    fn end_call(&mut self) -> Option<(Action, Duration)> {
        self.call.take().filter(|(_, _, session)| *session == self.session).map(|(call, sent, _)| (call, sent))
    }

    /// Counts the trust from before the call. All scopes ask when it is back, or if there is news.
    fn believe(&mut self, now: Duration, sent: Duration, trust: Duration, is_news: bool) {
        if sent >= self.heard {
            (self.heard, self.trusted_until) = (sent, sent + trust);
        }
        let is_back = !self.handed_out && now < self.trusted_until;
        self.handed_out |= is_back;
        self.actions.extend((is_back || is_news).then_some(Action::Ask));
    }

    fn cancel(&mut self) {
        self.actions.extend(mem::take(&mut self.handed_out).then_some(Action::Cancel));
    }

    /// The session has ended. While it was trusted, only another process can have ended it, which may have the same
    /// name: two such processes must not end each other for ever.
    fn end(&mut self, now: Duration) {
        self.cancel();
        let taken = !mem::take(&mut self.replaces) && now < self.trusted_until;
        (self.session, self.asks, self.trusted_until, self.next_call) = (None, false, NEVER, now);
        if self.draining {
            self.close();
        } else if taken {
            if now >= self.opened_at + LONGEST_REOPEN {
                self.reopen_pause = FIRST_REOPEN;
            }
            self.next_call += self.reopen_pause.mul_f64(0.5 + 0.5 * self.chance);
            self.reopen_pause = (2 * self.reopen_pause).min(LONGEST_REOPEN);
            self.actions.push(Action::Warn("taken".into()));
        }
    }

    /// The first new try is at once. Later ones come after a pause that doubles.
    fn lose_connection(&mut self, now: Duration) {
        let doubled = self.attempts.checked_sub(1).map(|tries| MIN_CONNECT_PAUSE * 2u32.pow(tries));
        let pause = doubled.unwrap_or(NEVER).min(MAX_CONNECT_PAUSE).min(self.ttl / 6);
        (self.connected, self.call) = (false, None);
        self.next_connect = Some(now + pause.mul_f64(0.5 + 0.5 * self.chance));
        self.attempts = (self.attempts + 1).min(16);
    }
}

#[cfg(test)]
mod tests;
