//! Linearizability: each grant, renewal and release of a resource must fit one instant between its call and its answer,
//! by the model of [`super::permits`].
//!
//! Refused acquires promise nothing and are left out. A session may learn of a grant only later, after a hand-over. The
//! grant then lies before the answer that tells of it, after the session's opening, and after the start of the last
//! answered call about the slot's former fence. The model would order that last call before the grant in any case. A
//! call without an answer is no operation. An end without an answer is in `ends_from`. A grant without an answer is
//! known by later calls about its fence, or does not matter.
//!
//! The search is exponential at worst, so the operations are cut wherever none is under way. At a cut the state is
//! known: a slot's highest fence names its holder, unless that fence was released.

use super::facts::{Facts, Fate, Tenure, is_lost};
use super::fault::Fault;
use super::permits::{Holder, Permits, Step};
use crate::history::{Call, Verb};
use std::collections::{BTreeMap, HashMap};
use todc_utils::{Action, History, WGLChecker};

const CHECK: &str = "linearizability";

#[derive(Clone)]
struct Operation<'a> {
    from: u64,
    to: u64,
    step: Step,
    calls: Vec<&'a Call>,
}

pub fn check(facts: &Facts) -> Option<Fault> {
    facts.resources.iter().find_map(|(resource, tenures)| {
        let mut operations = operations(facts, tenures);
        operations.extend(resizes(facts, resource));
        operations.sort_by_key(|operation| (operation.from, operation.to));
        let mut state =
            Permits { permits: facts.history.permits.get(*resource).copied().unwrap_or(1), ..Permits::default() };
        for window in windows(operations) {
            if !is_linearizable(&state, &window) {
                let proof = shrink(&state, window);
                let what = format!("no order of these calls on {resource} is possible, after {:?}", state.holders);
                return Some(Fault::new(
                    CHECK,
                    what,
                    proof.iter().flat_map(|operation| operation.calls.iter().copied()),
                ));
            }
            settle(&mut state, &window);
        }
        None
    })
}

fn operations<'a>(facts: &Facts<'a>, tenures: &BTreeMap<i64, Tenure<'a>>) -> Vec<Operation<'a>> {
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let mut operations: Vec<Operation> = Vec::new();
    // For each slot, the latest start of an answered call about its former fence.
    let mut said: HashMap<i32, u64> = HashMap::new();
    for tenure in tenures.values() {
        let count = numbers.len() as u32;
        let session = *numbers.entry(tenure.session).or_insert(count);
        let told = said.get(&tenure.slot).copied().unwrap_or(0);
        let opened = facts.sessions.get(tenure.session).map_or(0, |session| session.opened);
        let (from, to, calls) = match tenure.granted {
            Some((call, at)) => (call.from, at, vec![call]),
            None if tenure.seen == u64::MAX => continue,
            None => {
                let first: Vec<&Call> =
                    tenure.calls.iter().filter(|call| call.answer.is_some()).take(1).copied().collect();
                (opened.max(told).min(tenure.seen), tenure.seen, first)
            }
        };
        let inherits = facts.sessions.get(tenure.session).is_some_and(|session| session.takeover);
        let holder = Holder { session, inherits, fence: tenure.fence, ends_from: tenure.ends_from };
        operations.push(Operation { from, to, step: Step::Grant { slot: tenure.slot, holder, to }, calls });
        let answered = tenure.calls.iter().filter_map(|call| step(facts, tenure, call));
        let latest = said.entry(tenure.slot).or_default();
        *latest = from.max(*latest);
        for operation in answered {
            if !matches!(operation.step, Step::Lost { .. }) {
                *latest = operation.from.max(*latest);
            }
            operations.push(operation);
        }
    }
    operations
}

fn resizes<'a>(facts: &Facts<'a>, resource: &str) -> impl Iterator<Item = Operation<'a>> {
    let of = |call: &&Call| call.verb == Verb::Resize && call.resource.as_deref() == Some(resource);
    facts.history.calls.iter().filter(of).filter_map(|call| {
        let step = Step::Resize { permits: call.permits? };
        Some(Operation { from: call.from, to: call.to?, step, calls: vec![call] })
    })
}

/// Returns the operation that a later call about a granted fence proves: a renewal, a check, a release, or another
/// grant of the same fence. The grant itself is not one of these.
fn step<'a>(facts: &Facts, tenure: &Tenure, call: &'a Call) -> Option<Operation<'a>> {
    let to = call.to?;
    let fence = tenure.fence;
    let done = call.answer.as_ref().and_then(|answer| answer.done.or(answer.held));
    let (step, to) = match (call.verb, facts.fate(call)) {
        (Verb::Release | Verb::Force, Fate::Done(at)) if done == Some(true) => (Step::Release { fence }, at),
        (Verb::Release | Verb::Force, Fate::Done(at)) => (Step::Lost { fence, to: at }, at),
        (Verb::Grace, Fate::Done(at)) if done == Some(true) => (Step::Held { fence }, at),
        (Verb::Grace, Fate::Done(at)) => (Step::Lost { fence, to: at }, at),
        (Verb::Acquire | Verb::Lock, Fate::Done(at))
            if tenure.granted.is_none_or(|(granted, _)| !std::ptr::eq(granted, call)) =>
        {
            (Step::Held { fence }, at)
        }
        (Verb::Renew | Verb::Check, _) if is_lost(call) => (Step::Lost { fence, to }, to),
        // A check holds when it is made, even if its transaction fails later.
        (Verb::Renew | Verb::Check, _) if call.answer.is_some() => (Step::Held { fence }, to),
        _ => return None,
    };
    Some(Operation { from: call.from, to, step, calls: vec![call] })
}

/// Cuts operations wherever none is under way. They come in the order of their beginnings.
fn windows(operations: Vec<Operation>) -> Vec<Vec<Operation>> {
    let (mut windows, mut busy_until): (Vec<Vec<Operation>>, u64) = (Vec::new(), 0);
    for operation in operations {
        let until = operation.to;
        match windows.last_mut() {
            Some(window) if operation.from <= busy_until => window.push(operation),
            _ => windows.push(vec![operation]),
        }
        busy_until = busy_until.max(until);
    }
    windows
}

fn is_linearizable(state: &Permits, window: &[Operation]) -> bool {
    let mut times: Vec<(u64, bool, usize)> = Vec::new();
    for (index, operation) in window.iter().enumerate() {
        times.push((operation.from, false, index));
        times.push((operation.to, true, index));
    }
    // A call at the time of an answer may have come before it.
    times.sort_unstable();
    let start = Step::Start(state.clone());
    let mut actions = vec![(0, Action::Call(start.clone())), (0, Action::Response(start))];
    actions.extend(times.into_iter().map(|(_, answered, index)| {
        let step = window[index].step.clone();
        (index + 1, if answered { Action::Response(step) } else { Action::Call(step) })
    }));
    WGLChecker::<Permits>::is_linearizable(History::from_actions(actions))
}

/// Moves the state on to the end of a window that is linearizable.
fn settle(state: &mut Permits, window: &[Operation]) {
    for operation in window {
        if let Step::Grant { slot, holder, .. } = &operation.step
            && state.last.get(slot).is_none_or(|last| *last < holder.fence)
        {
            state.grant(*slot, holder);
        }
    }
    for operation in window {
        match operation.step {
            Step::Release { fence } => state.release(fence),
            Step::Resize { permits } => state.permits = permits,
            _ => (),
        }
    }
}

/// Leaves out operations that the contradiction does not need. It tries only operations that change no state, so
/// leaving them out makes no other operation impossible.
fn shrink<'a>(state: &Permits, mut window: Vec<Operation<'a>>) -> Vec<Operation<'a>> {
    let mut at = 0;
    while at < window.len() {
        let left_out = window.remove(at);
        let is_needed = matches!(left_out.step, Step::Grant { .. } | Step::Release { .. } | Step::Resize { .. })
            || is_linearizable(state, &window);
        if is_needed {
            window.insert(at, left_out);
            at += 1;
        }
    }
    window
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::{Story, about, done};
    use super::*;
    use crate::history::Answer;

    fn story() -> Story {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..20, "a", "granted", 1).renew(30..31, "a", 1, true).release(40..50, "a", 1);
        story
    }

    #[test]
    fn one_after_the_other_is_right() {
        let mut story = story();
        story.acquire(45..60, "b", "granted", 2).renew(55..65, "a", 1, false).renew(70..71, "b", 2, true);
        assert!(story.by(check).is_none());
    }

    #[test]
    fn two_holders_are_found() {
        // The grant comes before the release, and within the second of trust.
        let fault = story().acquire(32..33, "b", "granted", 2).by(check);
        assert!(fault.is_some_and(|fault| fault.proof.len() <= 4));
    }

    #[test]
    fn after_a_session_that_nobody_was_told_of_another_may_have_it() {
        let seen = Answer { fence: Some(1), slot: Some(0), ..Answer::default() };
        let mut story = Story::of(&["a"]);
        story.call(10..20, about(Verb::Look, "unknown", 0), Ok(seen)).acquire(30..31, "a", "granted", 2);
        assert!(story.by(check).is_none());
    }

    #[test]
    fn after_its_trust_or_its_close_another_may_have_it() {
        let mut late = Story::of(&["a", "b"]);
        late.acquire(10..20, "a", "granted", 1).acquire(1_005..1_011, "b", "granted", 2).renew(
            1_100..1_101,
            "a",
            1,
            false,
        );
        assert!(late.by(check).is_none());
        let mut closed = Story::of(&["a", "b"]);
        closed.acquire(10..20, "a", "granted", 1).silence(25, about(Verb::Close, "a", 0)).acquire(
            30..31,
            "b",
            "granted",
            2,
        );
        assert!(closed.by(check).is_none());
    }

    #[test]
    fn a_fence_that_is_used_again_is_found() {
        assert!(story().acquire(60..61, "b", "granted", 1).by(check).is_some());
    }

    #[test]
    fn a_lower_fence_is_found() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..20, "a", "granted", 5).release(40..50, "a", 5).acquire(60..70, "b", "granted", 4);
        assert!(story.by(check).is_some());
    }

    #[test]
    fn a_release_that_came_to_nothing_is_found() {
        let mut story = story();
        story.renew(60..61, "a", 1, true);
        assert!(story.by(check).is_some_and(|fault| fault.proof.len() <= 3));
    }

    #[test]
    fn a_lease_that_is_lost_for_nothing_is_found() {
        let mut story = Story::of(&["a"]);
        assert!(story.acquire(10..20, "a", "granted", 1).renew(30..31, "a", 1, false).by(check).is_some());
    }

    #[test]
    fn a_lease_in_grace_is_held_until_that_is_over() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..20, "a", "granted", 1).grace(30..31, "a", 1, 200).acquire(40..41, "a", "already_held", 1);
        assert!(story.by(check).is_none());
        story.acquire(240..241, "b", "granted", 2);
        assert!(story.by(check).is_none());
        assert!(story.acquire(100..101, "b", "granted", 2).by(check).is_some());
    }

    #[test]
    fn a_grant_that_is_learned_of_later_has_happened_before() {
        let mut story = story();
        story.acquire(35..36, "b", "queued", 0).acquire(90..91, "b", "already_held", 2);
        assert!(story.by(check).is_none());
        story.renew(95..96, "a", 1, true);
        assert!(story.by(check).is_some());
    }

    #[test]
    fn a_rollback_is_no_grant() {
        let mut story = Story::of(&["a", "b"]);
        let granted = Answer {
            granted: Some(true),
            fence: Some(1),
            slot: Some(0),
            reason: Some("granted".into()),
            ..Answer::default()
        };
        story.call(10..20, Call { tx: Some(7), ..about(Verb::Acquire, "a", 0) }, Ok(granted));
        story.call(21..22, Call { tx: Some(7), ..about(Verb::Rollback, "a", 0) }, Ok(done()));
        assert!(story.acquire(30..31, "b", "granted", 2).by(check).is_none());
    }

    #[test]
    fn a_semaphore_has_its_permits_and_no_more() {
        let mut story = Story::of(&["a", "b", "c"]);
        story.0.permits.insert("r".into(), 2);
        for (session, slot, at) in [("a", 0, 10), ("b", 1, 20)] {
            story.acquire(at..at + 1, session, "granted", at as i64);
            story.in_slot(slot);
        }
        assert!(story.by(check).is_none());
        story.acquire(30..31, "c", "granted", 30);
        assert!(story.by(check).is_some());
    }

    #[test]
    fn a_semaphore_that_shrinks_grants_nothing_before_as_many_have_gone() {
        for (released, wrong) in [("b", true), ("a", true), ("both", false)] {
            let mut story = Story::of(&["a", "b", "c", "d"]);
            story.0.permits.insert("r".into(), 3);
            for (slot, session) in ["a", "b", "c"].into_iter().enumerate() {
                let at = 10 * (slot as u64 + 1);
                story.acquire(at..at + 1, session, "granted", at as i64).in_slot(slot as i32);
            }
            let shrink = Call { permits: Some(2), ..about(Verb::Resize, "nemesis", 0) };
            story.call(40..41, shrink, Ok(done()));
            if released != "b" {
                story.release(50..51, "a", 10);
            }
            if released != "a" {
                story.release(60..61, "b", 20);
            }
            story.acquire(70..71, "d", "granted", 70).in_slot(i32::from(released == "b"));
            assert_eq!(story.by(check).is_some(), wrong, "{released}");
        }
    }

    #[test]
    fn a_successor_inherits_a_permit_beyond() {
        for takeover in [true, false] {
            let mut story = Story::of(&["a", "b"]);
            story.0.permits.insert("r".into(), 2);
            story.acquire(10..11, "b", "granted", 10).in_slot(0);
            story.acquire(20..21, "a", "granted", 20).in_slot(1);
            story.call(30..31, Call { permits: Some(1), ..about(Verb::Resize, "nemesis", 0) }, Ok(done()));
            story.release(35..36, "a", 20);
            let (consumer, client) = (Some("a".into()), "next".into());
            let opened = Answer { session: Some("next".into()), trust_ms: Some(1_000), ..Answer::default() };
            let open = Call { verb: Verb::Open, consumer, client, takeover, ..Call::default() };
            story.call(40..41, open, Ok(opened)).acquire(50..51, "next", "already_held", 50).in_slot(1);
            assert_eq!(story.by(check).is_some(), !takeover);
        }
    }

    #[test]
    fn a_session_has_one_permit() {
        let mut story = Story::of(&["a"]);
        story.0.permits.insert("r".into(), 2);
        for (slot, at) in [(0, 10), (1, 20)] {
            story.acquire(at..at + 1, "a", "granted", at as i64);
            story.in_slot(slot);
        }
        assert!(story.by(check).is_some());
    }
}
