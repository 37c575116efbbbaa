//! The writes. In the order of commits the fence of a slot never falls, and each fence belongs to one session. While a
//! fenced transaction is open, no other session is granted the slot.
//!
//! A serial gives the order of commits. Each fenced transaction takes it last, from the counter row of its slot, which
//! stays locked to the end of the transaction. So the next transaction takes its number after that end; a number that
//! was rolled back is taken again. Hence committed rows have their serials in the order of commits. Because the serial
//! comes last, a stale holder's transaction does not wait for it before writing. Transactions that overlap still get
//! serials in some order, so the check also looks for overlaps by time. From the answer of a fence_check to the
//! answered end of its transaction, no session may be told a higher fence of the slot.

use super::facts::{Facts, Fate};
use super::fault::Fault;
use crate::history::{Call, Row, Verb};
use std::collections::HashMap;

const CHECK: &str = "fenced writes";

pub fn check(facts: &Facts) -> Option<Fault> {
    falling(facts).or_else(|| shared(facts)).or_else(|| overlapping(facts))
}

/// Finds a session that is told that it holds the fence of another. Private sessions, which no client has opened, do
/// not count: the view shows them for a lease in grace and for a lock.
fn shared(facts: &Facts) -> Option<Fault> {
    facts.history.calls.iter().filter(|call| matches!(call.verb, Verb::Acquire | Verb::Lock)).find_map(|call| {
        let told = call.answer.as_ref()?.fence?;
        let (tenure, session) = (facts.tenure(call)?, call.session.as_deref()?);
        let owner = facts.sessions.get(tenure.session)?;
        (tenure.session != session && facts.fate(call) != Fate::Undone).then(|| {
            let what = format!("fence {told} of {} is told to {session}, too", owner.consumer);
            Fault::new(CHECK, what, tenure.calls.iter().take(1).copied().chain([call]))
        })
    })
}

fn falling(facts: &Facts) -> Option<Fault> {
    let mut rows: Vec<&Row> = facts.history.rows.iter().collect();
    rows.sort_by(|a, b| (&a.resource, a.slot, a.serial).cmp(&(&b.resource, b.slot, b.serial)));
    for pair in rows.windows(2) {
        let [before, after] = pair else { continue };
        if (&before.resource, before.slot) == (&after.resource, after.slot) {
            let falls = after.fence < before.fence;
            if falls || (after.fence == before.fence && after.session != before.session) {
                let what = if falls { "fell" } else { "belongs to two sessions" };
                return Some(Fault::new(
                    CHECK,
                    format!("the fence of {} {what}: {before:?}, then {after:?}", after.resource),
                    told(facts, pair),
                ));
            }
        }
    }
    let mut owners: HashMap<i64, &Row> = HashMap::new();
    for row in &rows {
        let first = owners.entry(row.fence).or_insert(row);
        if (&first.session, &first.resource) != (&row.session, &row.resource) {
            return Some(Fault::new(
                CHECK,
                format!("a fence belongs to two: {first:?}, {row:?}"),
                told(facts, &[first, row]),
            ));
        }
    }
    None
}

fn told<'a>(facts: &Facts<'a>, rows: &[&Row]) -> Vec<&'a Call> {
    let of_row = |call: &&Call| {
        rows.iter().any(|row| {
            call.element.as_ref() == Some(&row.element)
                || call.answer.as_ref().is_some_and(|a| a.fence == Some(row.fence))
        })
    };
    let mut told: Vec<&Call> = facts.history.calls.iter().filter(of_row).collect();
    let extra: Vec<&Call> = told
        .iter()
        .filter_map(|call| call.tx.map(|tx| (&call.client, tx)))
        .flat_map(|(client, tx)| {
            facts.history.calls.iter().filter(move |call| call.client == *client && call.tx == Some(tx))
        })
        .collect();
    told.extend(extra);
    told
}

fn overlapping(facts: &Facts) -> Option<Fault> {
    let mut resolutions: HashMap<&str, &Call> = HashMap::new();
    for call in facts.history.calls.iter().filter(|call| call.verb == Verb::CommitPrepared) {
        resolutions.entry(call.gid.as_deref().unwrap_or_default()).or_insert(call);
    }
    for check in facts.history.calls.iter().filter(|call| call.verb == Verb::Check && call.answer.is_some()) {
        let (Some(tenure), Some(tx)) = (facts.tenure(check), check.tx) else { continue };
        let Some(end) = facts.ends.get(&(check.client.as_str(), tx)).copied() else { continue };
        let same = |call: &&Call| call.client == check.client && call.tx == check.tx;
        let failed = facts.history.calls.iter().filter(same).find(|call| call.error.is_some());
        let end = failed.unwrap_or(end);
        let end = match (end.verb, facts.fate(check)) {
            (Verb::Prepare, Fate::Done(_)) => {
                end.gid.as_deref().and_then(|gid| resolutions.get(gid)).copied().unwrap_or(end)
            }
            _ => end,
        };
        let resource = check.resource.as_deref().unwrap_or_default();
        let mut later = facts.resources.get(resource)?.range(tenure.fence + 1..).map(|(_, later)| later);
        // After an error, or the loss of its connection, the transaction may have ended long before.
        let open = end.answer.is_some();
        if let Some(next) = later.find(|next| open && next.slot == tenure.slot && next.seen < end.from) {
            let what = format!(
                "fence {} of {resource} was granted while a transaction that had checked {} was open",
                next.fence, tenure.fence
            );
            return Some(Fault::new(CHECK, what, next.calls.iter().take(1).copied().chain([check, end])));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::{Story, about};
    use super::*;

    /// Two tenures, one after the other.
    fn story() -> Story {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..11, "a", "granted", 1).write(20, 25, "a", 1, Ok(()));
        story.release(30..31, "a", 1).acquire(32..33, "b", "granted", 2).write(40, 45, "b", 2, Ok(()));
        story.row(1, 20, "a", 1).row(2, 40, "b", 2);
        story
    }

    #[test]
    fn fences_that_rise_are_right() {
        assert!(story().by(check).is_none());
    }

    #[test]
    fn a_fence_that_falls_is_found() {
        let fault = story().row(3, 50, "a", 1).by(check);
        assert!(fault.is_some_and(|fault| fault.what.contains("fell") && !fault.proof.is_empty()));
    }

    #[test]
    fn a_fence_of_two_sessions_is_found() {
        assert!(story().row(3, 50, "a", 2).by(check).is_some_and(|fault| fault.what.contains("belongs to two")));
    }

    #[test]
    fn a_fence_that_is_told_to_a_successor_is_found() {
        for (session, wrong) in [("b", true), ("a", false)] {
            let mut story = Story::of(&["a", "b"]);
            story.acquire(10..11, "a", "granted", 1).grace(20..21, "a", 1, 500);
            assert_eq!(story.acquire(30..31, session, "already_held", 1).by(check).is_some(), wrong);
        }
    }

    #[test]
    fn a_grant_under_an_open_transaction_is_found() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..11, "a", "granted", 1).write(20, 60, "a", 1, Ok(())).acquire(40..41, "b", "granted", 2);
        assert!(story.by(check).is_some_and(|fault| fault.what.contains("was open") && fault.proof.len() == 3));
    }

    #[test]
    fn a_grant_under_a_prepared_transaction_is_found_but_not_after_it() {
        for (resolved, wrong) in [(50, true), (30, false)] {
            let mut story = Story::of(&["a", "b"]);
            let (tx, gid) = (Some(1), Some("g".to_owned()));
            story.acquire(10..11, "a", "granted", 1);
            story.call(20..21, Call { tx, ..about(Verb::Check, "a", 1) }, Ok(Default::default()));
            story.call(22..23, Call { tx, gid: gid.clone(), ..about(Verb::Prepare, "a", 0) }, Ok(Default::default()));
            story.call(
                resolved..resolved + 1,
                Call { gid, ..about(Verb::CommitPrepared, "n", 0) },
                Ok(Default::default()),
            );
            story.acquire(40..41, "b", "granted", 2);
            assert_eq!(story.by(check).is_some(), wrong, "{resolved}");
        }
    }

    #[test]
    fn a_transaction_that_failed_keeps_nothing() {
        let mut story = Story::of(&["a", "b"]);
        story.acquire(10..11, "a", "granted", 1);
        let in_block = |verb| Call { tx: Some(1), ..about(verb, "a", 1) };
        story.call(20..21, in_block(Verb::Check), Ok(Default::default())).call(
            25..26,
            in_block(Verb::Write),
            Err("57014"),
        );
        story.acquire(40..41, "b", "granted", 2).call(50..51, in_block(Verb::Rollback), Ok(Default::default()));
        assert!(story.by(check).is_none());
    }
}
