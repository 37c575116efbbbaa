//! Trust: a session that is told that it holds a slot may believe so until the start of its last call plus `trust_ms`.
//! No other session believes the same in that time.
//!
//! The window of a tenure begins when its session learns of it. It ends at the latest time that an answer to this
//! session has vouched for. It ends earlier if the session's own role (release, close, take-over) or an administrator
//! asked for its end. The end of its connection also ends an attached session. In these cases only the fence protects,
//! not the trust.

use super::facts::{Facts, Tenure};
use super::fault::Fault;
use crate::history::{Call, Verb};
use std::collections::BTreeMap;

const CHECK: &str = "trust";

pub fn check(facts: &Facts) -> Option<Fault> {
    for (resource, tenures) in &facts.resources {
        let mut latest: BTreeMap<i32, (u64, &Tenure)> = BTreeMap::new();
        for tenure in tenures.values() {
            let Some(session) = facts.sessions.get(tenure.session) else { continue };
            if let Some((until, before)) = latest.get(&tenure.slot)
                && before.session != tenure.session
                && *until > tenure.learned
            {
                let what = format!(
                    "fences {} and {} of {resource} were both trusted for {} us",
                    before.fence,
                    tenure.fence,
                    until - tenure.learned
                );
                return Some(Fault::new(CHECK, what, proof(facts, before, tenure)));
            }
            let until = session.trusted_until.min(tenure.given_up);
            if tenure.learned < until && latest.get(&tenure.slot).is_none_or(|(latest, _)| *latest < until) {
                latest.insert(tenure.slot, (until, tenure));
            }
        }
    }
    None
}

/// Returns the calls by which both sessions learned of their tenures, and the one that vouched longest for the first.
fn proof<'a>(facts: &Facts<'a>, before: &Tenure<'a>, after: &Tenure<'a>) -> Vec<&'a Call> {
    let vouches = |call: &&Call| {
        call.answer.as_ref().is_some_and(|answer| answer.trust_ms.is_some())
            && match call.verb {
                Verb::Renew => call.fence == Some(before.fence),
                _ => call.session.as_deref() == Some(before.session),
            }
    };
    let last =
        facts.history.calls.iter().filter(vouches).max_by_key(|call| {
            call.from + call.answer.as_ref().and_then(|answer| answer.trust_ms).unwrap_or(0) * 1_000
        });
    let first = |tenure: &Tenure<'a>| tenure.calls.iter().find(|call| call.answer.is_some()).copied();
    [first(before), last, first(after)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::{Story, about, done};
    use super::*;

    /// A heartbeat vouches for `a` until 1,500. The successor learns of its own grant at `granted`.
    fn story(granted: u64) -> Story {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..11, "a", "granted", 1).heartbeat(500..900, "a", true);
        story.acquire(granted - 1..granted, "b", "granted", 2);
        story
    }

    #[test]
    fn windows_that_meet_are_right() {
        assert!(story(1_500).by(check).is_none());
    }

    #[test]
    fn windows_that_overlap_are_found() {
        let fault = story(1_499).by(check);
        assert!(fault.is_some_and(|fault| fault.proof.len() == 3 && fault.what.contains("for 1000 us")));
    }

    #[test]
    fn a_renewal_vouches_too() {
        assert!(story(1_600).renew(700..701, "a", 1, true).by(check).is_some());
        assert!(story(1_600).renew(700..701, "a", 1, false).by(check).is_none());
    }

    #[test]
    fn who_ends_it_itself_trusts_no_longer() {
        assert!(story(1_000).release(950..1_001, "a", 1).by(check).is_none());
        let fault = story(1_000).silence(950, about(Verb::Release, "a", 1)).by(check);
        assert!(fault.is_none(), "{fault:?}");
        assert!(story(1_000).call(950..951, about(Verb::Close, "a", 0), Ok(done())).by(check).is_none());
        assert!(story(1_000).call(950..951, about(Verb::Force, "n", 1), Ok(done())).by(check).is_none());
        // A failed release is no end.
        assert!(story(1_000).call(950..951, about(Verb::Release, "a", 1), Err("55P03")).by(check).is_some());
    }

    #[test]
    fn a_lease_in_grace_vouches_for_nothing_else() {
        assert!(story(1_000).grace(950..951, "a", 1, 100).by(check).is_none());
        let mut other = story(1_500);
        let about_it = |verb, fence| Call { resource: Some("s".into()), ..about(verb, "a", fence) };
        let (granted, held) = (Some(1_000), Some(true));
        let answer = crate::history::Answer { fence: Some(7), slot: Some(0), trust_ms: granted, held, ..done() };
        other.call(20..21, about_it(Verb::Acquire, 0), Ok(answer.clone()));
        other.call(30..31, Call { ttl_ms: Some(5_000), ..about_it(Verb::Grace, 7) }, Ok(done()));
        assert!(other.call(800..801, about_it(Verb::Renew, 7), Ok(answer)).by(check).is_none());
    }

    #[test]
    fn a_take_over_ends_what_was_before() {
        let open = Call { verb: Verb::Open, consumer: Some("a".into()), takeover: true, ..Call::default() };
        assert!(story(1_000).call(950..951, open, Ok(done())).by(check).is_none());
    }

    #[test]
    fn only_an_attached_session_ends_with_its_connection() {
        for attached in [false, true] {
            let mut story = story(1_000);
            story.0.calls[0].attach = attached;
            story.0.faults.push(crate::history::Fault {
                at: 900_000,
                what: "kill".into(),
                client: Some("a".into()),
                disconnects: true,
            });
            assert_eq!(story.by(check).is_some(), !attached);
        }
    }
}
