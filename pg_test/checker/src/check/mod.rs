//! The checks. Each takes a history alone, says in its prose what it proves and why that is sound, and gives the first contradiction that it
//! finds with the lines that prove it.

mod dead;
#[cfg(test)]
mod fabricate;
mod facts;
mod left;
mod linear;
mod permits;
mod queue;
mod set;
mod trust;
mod writes;

use crate::history::{Call, History};
use facts::Facts;
use std::fmt::{Display, Formatter};

/// What should never be.
#[derive(Debug)]
pub struct Fault {
    pub check: &'static str,
    pub what: String,
    /// The part of the history that proves it, in order of time.
    pub proof: Vec<String>,
}

impl Fault {
    fn new<'a>(check: &'static str, what: String, proof: impl IntoIterator<Item = &'a Call>) -> Fault {
        let mut calls: Vec<&Call> = proof.into_iter().collect();
        calls.sort_by_key(|call| (call.from, call.number));
        calls.dedup_by_key(|call| (&call.client, call.number));
        Fault { check, what, proof: calls.into_iter().map(Call::to_string).collect() }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}: {}", self.check, self.what)?;
        self.proof.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// All checks of a history: what each has found.
pub fn all(history: &History) -> Vec<Fault> {
    let facts = Facts::of(history);
    let checks: [fn(&Facts) -> Option<Fault>; 7] =
        [writes::check, set::check, trust::check, dead::check, linear::check, queue::check, left::check];
    checks.iter().filter_map(|check| check(&facts)).collect()
}
