//! The dead stay dead: once a session is told that it has ended, no later answer says that it lives. A restart is an
//! exception. No row says that a session has expired, and a restart may not expire a session early. So a session that
//! has not been swept yet gets its whole TTL again.

use super::facts::{Facts, is_dead};
use super::fault::Fault;
use crate::history::Call;
use std::collections::HashMap;

const CHECK: &str = "the dead stay dead";

pub fn check(facts: &Facts) -> Option<Fault> {
    let mut died: HashMap<&str, &Call> = HashMap::new();
    for call in facts.history.calls.iter().filter(|call| is_dead(call)) {
        let first = died.entry(call.session.as_deref()?).or_insert(call);
        if call.to < first.to {
            *first = call;
        }
    }
    facts.history.calls.iter().find_map(|call| {
        let session = call.session.as_deref()?;
        let end = died.get(session)?;
        let alive = call.answer.as_ref().is_some_and(|answer| answer.trust_ms.is_some());
        let restarted = facts.may_revive(end.from, call.to.unwrap_or(u64::MAX));
        (alive && !restarted && Some(call.from) > end.to)
            .then(|| Fault::new(CHECK, format!("session {session} lives again"), [*end, call]))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::Story;
    use super::*;
    use crate::history;

    #[test]
    fn a_revival_is_found() {
        assert!(Story::of(&["a"]).heartbeat(10..11, "a", false).heartbeat(20..21, "a", true).by(check).is_some());
        assert!(Story::of(&["a"]).heartbeat(10..11, "a", true).heartbeat(20..21, "a", false).by(check).is_none());
    }

    #[test]
    fn a_restart_may_revive_who_has_expired() {
        // The old server, while it shuts down, may still have answered that the session has expired.
        for (at, is_fault) in [(5_000, true), (8_100_000, false), (10_500_000, false)] {
            let mut story = Story::of(&["a"]);
            story.heartbeat(10_000..10_001, "a", false).heartbeat(11_000..11_001, "a", true);
            story.0.faults.push(history::Fault { at, what: "crash".into(), client: None, disconnects: true });
            assert_eq!(story.by(check).is_some(), is_fault);
        }
    }

    #[test]
    fn calls_that_cross_are_right_in_any_order() {
        assert!(Story::of(&["a"]).heartbeat(10..21, "a", false).heartbeat(20..22, "a", true).by(check).is_none());
    }
}
