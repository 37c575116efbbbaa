//! The line: first come, first served, among living sessions.
//!
//! Take two sessions. The earlier one gets the answer `queued` before the later one asks at all, so it is ahead by the
//! order of commits. Fences of a resource are drawn in the order of its grants. It is a fault if the later session gets
//! a lower fence than the earlier one gets for its place. It is also a fault if the later session has a fence and the
//! earlier one is told afterwards that it still waits.
//!
//! There are exceptions. The earlier session may be passed over if it gave up its place, drained, tried to close, or
//! held the resource all the time. A later session that took over from another may have inherited an earlier place.
//! After a restart an expired session may live again, in its place. So no answer proves that a session lived throughout
//! a restart.

use super::facts::{Facts, Fate, Tenure};
use super::fault::Fault;
use crate::history::{Call, Verb};
use std::collections::BTreeMap;

const CHECK: &str = "first come, first served";

/// A session's wait for a resource.
struct Place<'a> {
    session: &'a str,
    /// The first answer that the session is queued.
    queued: &'a Call,
    since: u64,
    /// The tenure that the session got for its place.
    served: Option<&'a Tenure<'a>>,
    /// The last call whose answer says that the session waits.
    waits: &'a Call,
    /// The time from which the session may be passed over.
    yields: u64,
}

pub fn check(facts: &Facts) -> Option<Fault> {
    let resources = facts.resources.iter();
    resources.filter_map(|(resource, tenures)| overtaken(facts, resource, tenures)).next()
}

fn overtaken(facts: &Facts, resource: &str, tenures: &BTreeMap<i64, Tenure>) -> Option<Fault> {
    let mut asked: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in facts.history.calls.iter().filter(|call| call.verb == Verb::Acquire) {
        if let (Some(name), Some(session)) = (call.resource.as_deref(), call.session.as_deref())
            && name == resource
        {
            asked.entry(session).or_default().push(call);
        }
    }
    let places = asked.iter().flat_map(|(session, calls)| places(facts, session, calls, tenures));
    let places: Vec<Place> = places.collect();
    for later in tenures.values() {
        let Some((first_asked, request)) = request(later, asked.get(later.session)?, tenures) else { continue };
        if facts.sessions.get(later.session).is_none_or(|session| session.takeover) {
            continue;
        }
        let passed = |place: &&Place| {
            place.session != later.session
                && place.since < first_asked
                && place.yields > later.seen
                && place.served.is_none_or(|served| served.fence > later.fence)
                && (place.served.is_some() || place.waits.from > later.seen)
                && !facts.may_revive(later.seen, place.served.map_or(place.waits.from, |served| served.seen))
        };
        if let Some(place) = places.iter().find(passed) {
            let what = format!(
                "{} was served before {}, who was in line for {resource} before it asked",
                later.session, place.session
            );
            let told = later.calls.iter().find(|call| call.answer.is_some()).copied();
            let served =
                place.served.and_then(|served| served.calls.iter().find(|call| call.answer.is_some()).copied());
            let proof = [Some(place.queued), Some(request), told, served.or(Some(place.waits))];
            return Some(Fault::new(CHECK, what, proof.into_iter().flatten()));
        }
    }
    None
}

/// Returns the first call by which a session can have asked for its tenure: the first one after it learned of its
/// former tenure.
fn request<'a>(tenure: &Tenure, asked: &[&'a Call], tenures: &BTreeMap<i64, Tenure>) -> Option<(u64, &'a Call)> {
    let before =
        tenures.range(..tenure.fence).rev().map(|(_, other)| other).find(|other| other.session == tenure.session);
    // If it never learned of the former tenure, the time of its request is unknown.
    let since = before.map_or(0, |before| if before.learned == u64::MAX { 0 } else { before.learned });
    // The server may carry out a lost call at any later time.
    asked.iter().find(|call| call.from >= since || call.is_lost()).map(|call| (call.from, *call))
}

fn places<'a>(
    facts: &Facts<'a>,
    session: &'a str,
    asked: &[&'a Call],
    tenures: &'a BTreeMap<i64, Tenure<'a>>,
) -> Vec<Place<'a>> {
    let own: Vec<&Tenure> = tenures.values().filter(|tenure| tenure.session == session).collect();
    let yields = |since: u64| {
        let hers = |call: &&Call| {
            call.session.as_deref() == Some(session)
                && !(call.verb == Verb::Cancel && call.resource != asked[0].resource)
        };
        let gives_way =
            |call: &&Call| matches!(call.verb, Verb::Cancel | Verb::Drain | Verb::Close) && call.ended() >= since;
        let calls = facts.history.calls.iter().filter(hers).filter(gives_way);
        let end = facts.sessions.get(session).map_or(0, |session| session.ended_from);
        calls.map(|call| call.from).min().unwrap_or(u64::MAX).min(end)
    };
    let mut places: Vec<Place> = Vec::new();
    for call in asked {
        let Fate::Done(at) = facts.fate(call) else { continue };
        match (call.reason(), places.last_mut()) {
            // The session still waits in the same place, unless it was served meanwhile.
            ("queued" | "held" | "awaited" | "busy", Some(place))
                if call.from < place.yields && place.served.is_none_or(|served| served.learned > at) =>
            {
                place.waits = call;
            }
            ("queued", _) => {
                // The first grant that was unknown to the session when it asked.
                let served = own.iter().find(|tenure| tenure.learned > call.from).copied();
                // The session's own release was in flight. While it is, the session holds the lease: it may have no
                // second permit, and is passed over. If the release fails, the session keeps no place.
                let holds = own.iter().any(|tenure| tenure.learned <= call.from && tenure.settled > call.from);
                let yields = if holds { 0 } else { yields(at) };
                places.push(Place { session, queued: call, since: at, served, waits: call, yields });
            }
            _ => (),
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::{Story, about, done};
    use super::*;

    /// `a` is in line before `b` asks; `b` is granted fence 2.
    fn story() -> Story {
        let mut story = Story::of(&["a", "b", "h"]);
        story.acquire(5..6, "h", "granted", 1).acquire(10..11, "a", "queued", 0).acquire(20..21, "b", "queued", 0);
        story.release(30..31, "h", 1).acquire(40..41, "b", "already_held", 2);
        story
    }

    #[test]
    fn who_is_overtaken_is_found() {
        let fault = story().acquire(50..51, "a", "already_held", 3).by(check);
        assert!(fault.is_some_and(|fault| fault.proof.len() == 4));
        assert!(story().acquire(50..51, "a", "held", 0).by(check).is_some());
        // A look of another client proves a tenure as well as an answer does.
        let look = crate::history::Answer { fence: Some(3), slot: Some(0), ..Default::default() };
        assert!(story().call(60..61, about(Verb::Look, "a", 0), Ok(look)).by(check).is_some());
    }

    #[test]
    fn who_lives_again_may_have_been_passed_over() {
        let mut story = story();
        story.acquire(50..51, "a", "already_held", 3);
        let (what, client) = ("crash".into(), None);
        story.0.faults.push(crate::history::Fault { at: 45_000, what, client, disconnects: true });
        assert!(story.by(check).is_none());
    }

    #[test]
    fn who_is_served_before_is_right() {
        let mut story = Story::of(&["a", "b", "h"]);
        story.acquire(5..6, "h", "granted", 1).acquire(10..11, "a", "queued", 0).acquire(20..21, "b", "queued", 0);
        story.acquire(40..41, "b", "already_held", 3).acquire(50..51, "a", "already_held", 2);
        assert!(story.by(check).is_none());
    }

    #[test]
    fn who_asked_at_the_same_time_may_be_served_before() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..25, "a", "queued", 0).acquire(20..21, "b", "queued", 0);
        story.acquire(40..41, "b", "already_held", 2).acquire(50..51, "a", "already_held", 3);
        assert!(story.by(check).is_none());
    }

    #[test]
    fn who_may_have_died_or_gives_way_may_be_passed_over() {
        assert!(story().by(check).is_none());
        let cancel = about(Verb::Cancel, "a", 0);
        assert!(story().call(35..36, cancel, Ok(done())).acquire(50..51, "a", "already_held", 3).by(check).is_none());
        let close = about(Verb::Close, "a", 0);
        assert!(story().call(35..36, close, Err("55P03")).acquire(50..51, "a", "already_held", 3).by(check).is_none());
    }

    #[test]
    fn who_has_it_still_waits_for_nothing() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(5..6, "a", "granted", 1).acquire(10..11, "a", "queued", 0).acquire(20..21, "b", "queued", 0);
        story.acquire(40..41, "b", "already_held", 2).acquire(50..51, "a", "already_held", 3);
        assert!(story.by(check).is_none());
    }

    #[test]
    fn whose_release_is_prepared_may_be_passed_over() {
        for prepared in [false, true] {
            let (mut story, tx, gid) = (Story::of(&["a", "b"]), Some(1), Some("x".to_owned()));
            story.acquire(5..6, "a", "granted", 1);
            if prepared {
                story.call(7..8, Call { tx, ..about(Verb::Release, "a", 1) }, Ok(done()));
                story.call(8..9, Call { tx, gid: gid.clone(), ..about(Verb::Prepare, "a", 0) }, Ok(done()));
                story.call(30..31, Call { gid, ..about(Verb::CommitPrepared, "n", 0) }, Ok(done()));
            } else {
                story.release(7..8, "a", 1);
            }
            story.acquire(10..11, "a", "queued", 0).acquire(20..21, "b", "granted", 2).in_slot(1);
            assert_eq!(story.acquire(40..41, "a", "already_held", 3).by(check).is_none(), prepared);
        }
    }

    #[test]
    fn who_has_been_served_once_is_in_line_anew() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..11, "a", "queued", 0).acquire(12..13, "a", "already_held", 1).release(14..15, "a", 1);
        story.acquire(20..21, "b", "granted", 2).acquire(22..23, "a", "queued", 0).release(24..25, "b", 2);
        story.acquire(26..27, "a", "already_held", 3);
        assert!(story.by(check).is_none());
    }
}
