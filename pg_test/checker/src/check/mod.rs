//! The checks. A check knows nothing but the history of a run: it takes the [`Facts`] that follow from the history, and
//! returns the first contradiction, with the lines that prove it. The head of each check's file says what the check
//! proves, and why that is sound.
//!
//! Files, low to high: fault, facts, fabricate, permits, writes, set, trust, dead, linear, queue, left, mod.

mod dead;
#[cfg(test)]
mod fabricate;
mod facts;
mod fault;
mod left;
mod linear;
mod permits;
mod queue;
mod set;
mod trust;
mod writes;

pub use fault::Fault;

use crate::history::History;
use facts::Facts;

/// Runs all checks of a history, and returns the faults that they have found.
pub fn all(history: &History) -> Vec<Fault> {
    let facts = Facts::of(history);
    let checks: [fn(&Facts) -> Option<Fault>; 7] =
        [writes::check, set::check, trust::check, dead::check, linear::check, queue::check, left::check];
    checks.iter().filter_map(|check| check(&facts)).collect()
}
