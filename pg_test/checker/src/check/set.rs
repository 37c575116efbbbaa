//! The guarded set has every element whose COMMIT was answered, once, and no element of a transaction that was refused
//! or rolled back. If a COMMIT had no answer, its element may be there or not.

use super::facts::{Facts, Fate};
use super::fault::Fault;
use crate::history::{Row, Verb};
use std::collections::HashMap;

const CHECK: &str = "guarded set";

pub fn check(facts: &Facts) -> Option<Fault> {
    let mut rows: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in &facts.history.rows {
        rows.entry(&row.element).or_default().push(row);
    }
    for write in facts.history.calls.iter().filter(|call| call.verb == Verb::Write) {
        let element = write.element.as_deref().unwrap_or_default();
        let there = rows.get(element).map_or(0, Vec::len);
        let what = match facts.fate(write) {
            Fate::Done(_) if there != 1 => format!("element {element} was acknowledged and is there {there} times"),
            Fate::Undone if there > 0 => format!("element {element} was refused and is there"),
            _ => continue,
        };
        let same = facts.history.calls.iter().filter(|call| call.client == write.client && call.tx == write.tx);
        return Some(Fault::new(CHECK, what, same));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::fabricate::{Story, about, done};
    use super::*;
    use crate::history::Call;

    fn story(commit: Result<(), &str>) -> Story {
        let mut story = Story::of(&["a"]);
        story.acquire(10..11, "a", "granted", 1).write(20, 25, "a", 1, commit);
        story
    }

    #[test]
    fn what_was_acknowledged_is_there() {
        assert!(story(Ok(())).row(1, 20, "a", 1).by(check).is_none());
        assert!(story(Ok(())).by(check).is_some_and(|fault| fault.proof.len() == 3));
        assert!(story(Ok(())).row(1, 20, "a", 1).row(2, 20, "a", 1).by(check).is_some());
    }

    #[test]
    fn what_was_refused_is_not() {
        assert!(story(Err("40001")).by(check).is_none());
        assert!(story(Err("40001")).row(1, 20, "a", 1).by(check).is_some());
    }

    #[test]
    fn what_had_no_answer_may_be_either() {
        for unknown in ["lost", "57P01"] {
            assert!(story(Err(unknown)).by(check).is_none());
            assert!(story(Err(unknown)).row(1, 20, "a", 1).by(check).is_none());
        }
    }

    #[test]
    fn a_prepared_write_is_there_once_it_is_committed() {
        for (verb, there) in [(Verb::CommitPrepared, true), (Verb::RollbackPrepared, false)] {
            let mut story = Story::of(&["a"]);
            let (tx, gid, element) = (Some(1), Some("g".to_owned()), Some("a 20".to_owned()));
            story.call(20..21, Call { tx, element, ..about(Verb::Write, "a", 1) }, Ok(done()));
            story.call(22..23, Call { tx, gid: gid.clone(), ..about(Verb::Prepare, "a", 0) }, Ok(done()));
            story.call(50..51, Call { gid, ..about(verb, "n", 0) }, Ok(done()));
            assert_eq!(story.by(check).is_some(), there);
            assert_eq!(story.row(1, 20, "a", 1).by(check).is_some(), !there);
        }
    }
}
