//! Facts that follow directly from a history. Several checks rest on them.
//!
//! **Fates.** A call happened if its answer says so, or if the answer to the COMMIT or COMMIT PREPARED of its
//! transaction does. It did not happen if an error said so, or if its transaction was rolled back or never asked to
//! commit. Any other call may have happened or not, and every check allows for both.
//!
//! **Sessions.** A session certainly lives until the latest time that an answer has vouched for: the call's start plus
//! `trust_ms`. The exception is an earlier request for its end: by its own role, or, for an attached session, an end of
//! its connection.
//!
//! **Tenures.** A fence is one tenure of one session in one slot, known from any answer or row with that fence. A
//! release with grace gives up the tenure, which may end when the grace is over. Later answers about its fence say
//! nothing about the session.

use crate::history::{Call, History, Verb};
use std::collections::{BTreeMap, HashMap};

/// The nemesis records an end of the server before it ends the server, which may still answer for so many microseconds.
const DYING: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// The call had happened by this time.
    Done(u64),
    Undone,
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Session {
    pub client: String,
    pub consumer: String,
    pub opened: u64,
    pub attached: bool,
    pub takeover: bool,
    pub trusted_until: u64,
    /// The earliest time at which its end was asked for; `u64::MAX` if never.
    pub ended_from: u64,
}

pub struct Tenure<'a> {
    pub slot: i32,
    pub fence: i64,
    pub session: &'a str,
    /// The call that granted it, and when the grant had happened.
    pub granted: Option<(&'a Call, u64)>,
    /// When its own session first learned of it.
    pub learned: u64,
    /// When any session first learned of it.
    pub seen: u64,
    /// The earliest time at which an entitled client asked for its end, or its holder was told that it is lost.
    pub given_up: u64,
    /// When that end had certainly happened. A release in a prepared transaction may be long under way.
    pub settled: u64,
    /// The earliest time at which it may have ended without an answer that says so.
    pub ends_from: u64,
    /// All calls about it.
    pub calls: Vec<&'a Call>,
}

pub struct Facts<'a> {
    pub history: &'a History,
    fates: HashMap<(&'a str, u64), Fate>,
    /// The call that ended each transaction block, by client and number.
    pub ends: HashMap<(&'a str, u64), &'a Call>,
    pub sessions: HashMap<&'a str, Session>,
    pub resources: BTreeMap<&'a str, BTreeMap<i64, Tenure<'a>>>,
}

impl<'a> Facts<'a> {
    pub fn of(history: &'a History) -> Facts<'a> {
        let ends = ends(history);
        let (sessions, resources) = (HashMap::new(), BTreeMap::new());
        let mut facts = Facts { history, fates: fates(history, &ends), ends, sessions, resources };
        facts.meet_sessions();
        facts.meet_tenures();
        facts.trust();
        facts.end_sessions();
        facts.end_tenures();
        facts
    }

    pub fn fate(&self, call: &Call) -> Fate {
        self.fates.get(&(call.client.as_str(), call.number)).copied().unwrap_or(Fate::Unknown)
    }

    /// Returns whether the server may have restarted between these times. An expired session may then live again.
    pub fn may_revive(&self, from: u64, to: u64) -> bool {
        let meanwhile = from.saturating_sub(DYING)..=to;
        self.history.faults.iter().any(|fault| fault.ends_server() && meanwhile.contains(&fault.at))
    }

    pub fn tenure(&self, call: &Call) -> Option<&Tenure<'a>> {
        self.resources.get(call.resource.as_deref()?)?.get(&fence_of(call)?)
    }

    fn meet_sessions(&mut self) {
        for call in &self.history.calls {
            let (id, consumer) = match call.verb {
                Verb::Open => {
                    (call.answer.as_ref().and_then(|answer| answer.session.as_deref()), call.consumer.clone())
                }
                Verb::Lock => (call.session.as_deref(), None),
                _ => continue,
            };
            let Some(id) = id else { continue };
            self.sessions.entry(id).or_insert(Session {
                client: call.client.clone(),
                consumer: consumer.unwrap_or_default(),
                opened: call.from,
                attached: call.attach,
                takeover: call.takeover,
                trusted_until: 0,
                ended_from: u64::MAX,
            });
        }
    }

    fn meet_tenures(&mut self) {
        let history = self.history;
        for call in &history.calls {
            let Some(fence) = call.answer.as_ref().and_then(|answer| answer.fence) else { continue };
            let (Some(resource), Some(to)) = (call.resource.as_deref(), call.to) else { continue };
            let slot = call.answer.as_ref().and_then(|answer| answer.slot).unwrap_or(0);
            let (at, own) = match (call.verb, self.fate(call)) {
                (Verb::Acquire | Verb::Lock, Fate::Done(at)) => (at, true),
                (Verb::Look, _) => (to, false),
                _ => continue,
            };
            let Some(session) = call.session.as_deref() else { continue };
            let tenure = self
                .resources
                .entry(resource)
                .or_default()
                .entry(fence)
                .or_insert_with(|| Tenure::new(slot, fence, session));
            if own && tenure.granted.is_none() && matches!(call.reason(), "granted" | "refenced") {
                tenure.granted = Some((call, at));
            }
            tenure.seen = tenure.seen.min(at);
            if own {
                tenure.learned = tenure.learned.min(at);
            }
        }
        // A committed row under its fence proves a grant whose commit has no known outcome.
        for row in &history.rows {
            let tenures = self.resources.entry(row.resource.as_str()).or_default();
            tenures.entry(row.fence).or_insert_with(|| Tenure::new(row.slot, row.fence, &row.session));
        }
        for call in &history.calls {
            if let (Some(resource), Some(fence)) = (call.resource.as_deref(), fence_of(call))
                && let Some(tenure) = self.resources.get_mut(resource).and_then(|tenures| tenures.get_mut(&fence))
            {
                tenure.calls.push(call);
                let told =
                    call.answer.as_ref().is_some_and(|answer| answer.held == Some(true) || answer.done == Some(true));
                if let (true, Some(to)) = (told, call.to) {
                    tenure.seen = tenure.seen.min(to);
                }
            }
        }
    }

    fn trust(&mut self) {
        let vouched: Vec<(&str, u64)> = self
            .history
            .calls
            .iter()
            .filter_map(|call| {
                let answer = call.answer.as_ref()?;
                let session = match call.verb {
                    Verb::Open => answer.session.as_deref()?,
                    Verb::Renew => self.tenure(call).filter(|tenure| !tenure.is_in_grace(call))?.session,
                    _ => call.session.as_deref()?,
                };
                Some((session, call.from + answer.trust_ms? * 1_000))
            })
            .collect();
        for (session, until) in vouched {
            if let Some(session) = self.sessions.get_mut(session) {
                session.trusted_until = session.trusted_until.max(until);
            }
        }
    }

    fn end_sessions(&mut self) {
        let history = self.history;
        for (id, session) in &mut self.sessions {
            let mut end = |at: u64| {
                if at >= session.opened {
                    session.ended_from = session.ended_from.min(at);
                }
            };
            for call in &history.calls {
                let happened = self.fates.get(&(call.client.as_str(), call.number)) != Some(&Fate::Undone);
                match call.verb {
                    Verb::Close if happened && call.session.as_deref() == Some(*id) => end(call.from),
                    // The opening of the session itself is no end.
                    Verb::Open
                        if happened
                            && call.takeover
                            && call.consumer.as_ref() == Some(&session.consumer)
                            && call.answer.as_ref().and_then(|answer| answer.session.as_deref()) != Some(*id) =>
                    {
                        end(call.from);
                    }
                    Verb::Hangup if session.attached && call.client == session.client => end(call.from),
                    _ => (),
                }
            }
            let hit = |client: &Option<String>| client.as_ref().is_none_or(|client| *client == session.client);
            for fault in
                history.faults.iter().filter(|fault| fault.disconnects && session.attached && hit(&fault.client))
            {
                end(fault.at);
            }
        }
    }

    fn end_tenures(&mut self) {
        let mut told_dead: HashMap<&str, u64> = HashMap::new();
        for call in &self.history.calls {
            if let (Some(session), Some(to)) = (call.session.as_deref(), call.to)
                && is_dead(call)
            {
                told_dead.entry(session).and_modify(|at| *at = to.min(*at)).or_insert(to);
            }
        }
        for tenure in self.resources.values_mut().flat_map(BTreeMap::values_mut) {
            match self.sessions.get(tenure.session) {
                Some(session) => {
                    tenure.given_up = session.ended_from;
                    tenure.ends_from = session.ended_from.min(session.trusted_until);
                }
                // The opening of this session had no answer. So no client was told to trust it, and none knows how long
                // it lives.
                None => tenure.ends_from = 0,
            }
            tenure.given_up = tenure.given_up.min(told_dead.get(tenure.session).copied().unwrap_or(u64::MAX));
            for call in &tenure.calls {
                let fate = self.fates.get(&(call.client.as_str(), call.number)).copied();
                if let (Verb::Release | Verb::Force | Verb::Grace, Some(Fate::Done(at))) = (call.verb, fate) {
                    tenure.settled = tenure.settled.min(at);
                }
                match call.verb {
                    Verb::Release | Verb::Force if fate != Some(Fate::Undone) => {
                        tenure.given_up = tenure.given_up.min(call.from);
                        if fate == Some(Fate::Unknown) {
                            tenure.ends_from = tenure.ends_from.min(call.from);
                        }
                    }
                    // From then on the lease lives on without its session, for its grace.
                    Verb::Grace if fate != Some(Fate::Undone) => {
                        let over = call.from + call.ttl_ms.unwrap_or(0) * 1_000;
                        tenure.given_up = tenure.given_up.min(call.from);
                        tenure.ends_from = tenure.ends_from.min(over);
                    }
                    Verb::Renew | Verb::Check if is_lost(call) => {
                        let told = call.to.unwrap_or(u64::MAX);
                        tenure.given_up = tenure.given_up.min(told);
                        tenure.settled = tenure.settled.min(told);
                    }
                    _ => (),
                }
            }
        }
    }
}

impl<'a> Tenure<'a> {
    fn new(slot: i32, fence: i64, session: &'a str) -> Tenure<'a> {
        let never = u64::MAX;
        Tenure {
            slot,
            fence,
            session,
            granted: None,
            learned: never,
            seen: never,
            given_up: never,
            settled: never,
            ends_from: never,
            calls: Vec::new(),
        }
    }

    /// Returns whether an answer about the fence may belong to the grace, in which the lease lives without its session.
    fn is_in_grace(&self, call: &Call) -> bool {
        self.calls.iter().any(|other| other.verb == Verb::Grace && other.from <= call.ended())
    }
}

/// Returns the fence that a call names, or is told.
pub fn fence_of(call: &Call) -> Option<i64> {
    call.fence.or_else(|| call.answer.as_ref()?.fence)
}

/// Returns whether the call was told that its session has ended.
pub fn is_dead(call: &Call) -> bool {
    matches!(call.verb, Verb::Heartbeat | Verb::Wait | Verb::Acquire)
        && matches!(call.reason(), "expired" | "unknown_session")
}

/// Returns whether the holder was told that its fence is lost.
pub fn is_lost(call: &Call) -> bool {
    match call.verb {
        Verb::Renew => call.answer.as_ref().is_some_and(|answer| answer.held == Some(false)),
        _ => call.error.as_deref() == Some("LF001"),
    }
}

/// Returns the call that ended each transaction block: its request for a commit, or the rollback if that request
/// certainly failed.
fn ends(history: &History) -> HashMap<(&str, u64), &Call> {
    let mut ends: HashMap<(&str, u64), &Call> = HashMap::new();
    for call in history.calls.iter().filter(|call| matches!(call.verb, Verb::Commit | Verb::Rollback | Verb::Prepare)) {
        let Some(tx) = call.tx else { continue };
        let end = ends.entry((&call.client, tx)).or_insert(call);
        if end.failed() {
            *end = call;
        }
    }
    ends
}

fn fates<'a>(history: &'a History, ends: &HashMap<(&'a str, u64), &'a Call>) -> HashMap<(&'a str, u64), Fate> {
    let mut resolved: HashMap<&str, Fate> = HashMap::new();
    for call in &history.calls {
        let done = call.answer.as_ref().and(call.to);
        match (call.verb, call.gid.as_deref(), done) {
            (Verb::CommitPrepared, Some(gid), Some(at)) => drop(resolved.insert(gid, Fate::Done(at))),
            (Verb::RollbackPrepared, Some(gid), Some(_)) => drop(resolved.insert(gid, Fate::Undone)),
            _ => (),
        }
    }
    let alone = |call: &Call| match (&call.answer, call.to) {
        (Some(_), Some(to)) => Fate::Done(to),
        _ if call.failed() => Fate::Undone,
        _ => Fate::Unknown,
    };
    let of = |call: &Call| {
        let Some(tx) = call.tx else { return alone(call) };
        if call.failed() {
            return Fate::Undone;
        }
        match ends.get(&(call.client.as_str(), tx)) {
            Some(end) if end.verb == Verb::Commit => alone(end),
            Some(end) if end.verb == Verb::Prepare && !end.failed() => {
                end.gid.as_deref().and_then(|gid| resolved.get(gid)).copied().unwrap_or(Fate::Unknown)
            }
            _ => Fate::Undone,
        }
    };
    history.calls.iter().map(|call| ((call.client.as_str(), call.number), of(call))).collect()
}
