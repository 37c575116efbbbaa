//! A fault that a check finds.

use crate::history::Call;
use std::fmt::{Display, Formatter};

/// A violation of a promise.
#[derive(Debug)]
pub struct Fault {
    pub check: &'static str,
    pub what: String,
    /// The part of the history that proves it, in the order of time.
    pub proof: Vec<String>,
}

impl Fault {
    pub(super) fn new<'a>(check: &'static str, what: String, proof: impl IntoIterator<Item = &'a Call>) -> Fault {
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
