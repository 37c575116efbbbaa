//! Histories made by hand. They show that each check finds its own kind of fault, and no other. Times are in
//! milliseconds.

use super::facts::{self, Facts};
use super::fault::Fault;
use crate::history::{Answer, Call, History, Row, Verb};

#[derive(Default)]
pub struct Story(pub History);

/// Returns a call about the resource `r`.
pub fn about(verb: Verb, session: &str, fence: i64) -> Call {
    let fence = Some(fence).filter(|fence| *fence != 0);
    Call { verb, resource: Some("r".into()), session: Some(session.into()), fence, ..Call::default() }
}

pub fn done() -> Answer {
    Answer { done: Some(true), ..Answer::default() }
}

impl Story {
    /// Begins a history with some sessions. Each is opened at the beginning, by a client of the same name.
    pub fn of(sessions: &[&str]) -> Story {
        let mut story = Story::default();
        for session in sessions {
            let answer = Answer { session: Some((*session).into()), trust_ms: Some(1_000), ..Answer::default() };
            let call = Call {
                verb: Verb::Open,
                client: (*session).into(),
                consumer: Some((*session).into()),
                ..Call::default()
            };
            story.call(0..1, call, Ok(answer));
        }
        story
    }

    pub fn call(&mut self, time: std::ops::Range<u64>, mut call: Call, answer: Result<Answer, &str>) -> &mut Story {
        call.number = self.0.calls.len() as u64;
        if call.client.is_empty() {
            call.client = call.session.clone().unwrap_or("nemesis".into());
        }
        call.from = time.start * 1_000;
        call.to = Some(time.end * 1_000);
        match answer {
            Ok(answer) => call.answer = Some(answer),
            Err(error) => call.error = Some(error.into()),
        }
        self.0.calls.push(call);
        self
    }

    /// Adds a call without an answer.
    pub fn silence(&mut self, at: u64, call: Call) -> &mut Story {
        self.call(at..at, call, Err("lost"))
    }

    pub fn acquire(&mut self, time: std::ops::Range<u64>, session: &str, reason: &str, fence: i64) -> &mut Story {
        let granted = fence != 0;
        let answer = Answer {
            granted: Some(granted),
            fence: granted.then_some(fence),
            slot: granted.then_some(0),
            trust_ms: granted.then_some(1_000),
            reason: Some(reason.into()),
            ..Answer::default()
        };
        self.call(time, Call { queue: true, ..about(Verb::Acquire, session, 0) }, Ok(answer))
    }

    /// Sets the slot of the last answer.
    pub fn in_slot(&mut self, slot: i32) {
        if let Some(answer) = self.0.calls.last_mut().and_then(|call| call.answer.as_mut()) {
            answer.slot = Some(slot);
        }
    }

    pub fn renew(&mut self, time: std::ops::Range<u64>, session: &str, fence: i64, held: bool) -> &mut Story {
        let trust_ms = held.then_some(1_000);
        self.call(
            time,
            about(Verb::Renew, session, fence),
            Ok(Answer { held: Some(held), trust_ms, ..Answer::default() }),
        )
    }

    pub fn heartbeat(&mut self, time: std::ops::Range<u64>, session: &str, alive: bool) -> &mut Story {
        let (reason, trust_ms) = (if alive { "alive" } else { "expired" }, alive.then_some(1_000));
        let answer = Answer { alive: Some(alive), trust_ms, reason: Some(reason.into()), ..Answer::default() };
        self.call(time, Call { resource: None, ..about(Verb::Heartbeat, session, 0) }, Ok(answer))
    }

    pub fn release(&mut self, time: std::ops::Range<u64>, session: &str, fence: i64) -> &mut Story {
        self.call(time, about(Verb::Release, session, fence), Ok(done()))
    }

    /// Adds a release with a grace of `grace` milliseconds.
    pub fn grace(&mut self, time: std::ops::Range<u64>, session: &str, fence: i64, grace: u64) -> &mut Story {
        self.call(time, Call { ttl_ms: Some(grace), ..about(Verb::Grace, session, fence) }, Ok(done()))
    }

    /// Adds a fenced transaction, in steps of a millisecond from `at` on. Its commit is asked for at `end`.
    pub fn write(&mut self, at: u64, end: u64, session: &str, fence: i64, commit: Result<(), &str>) -> &mut Story {
        let tx = Some(at);
        let element = Some(format!("{session} {at}"));
        self.call(at..at + 1, Call { tx, ..about(Verb::Check, session, fence) }, Ok(done()));
        self.call(at + 1..at + 2, Call { tx, element, ..about(Verb::Write, session, fence) }, Ok(done()));
        self.call(
            end..end + 1,
            Call { tx, fence: None, ..about(Verb::Commit, session, fence) },
            commit.map(|()| done()),
        )
    }

    pub fn row(&mut self, serial: i64, at: u64, session: &str, fence: i64) -> &mut Story {
        let element = format!("{session} {at}");
        self.0.rows.push(Row { resource: "r".into(), slot: 0, serial, fence, session: session.into(), element });
        self
    }

    /// Returns what a check finds in the history.
    pub fn by(&mut self, check: fn(&Facts) -> Option<Fault>) -> Option<Fault> {
        self.0.calls.sort_by_key(|call| call.from);
        check(&facts::Facts::of(&self.0))
    }
}
