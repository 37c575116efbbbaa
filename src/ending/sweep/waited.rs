//! Leases of the dead that sessions wait for: these are handed over before anything else is taken from the dead.
//!
//! Each lease is looked at once, for a dead session may have had a million that no session waits for, which are taken
//! away in a thousand passes. That is enough. A session that comes to wait for one later, or a transaction that gives
//! up what is in the way, has it judged by way of the ring. So does a pass that found one waited for and could not hand
//! it over. Nothing here has to be remembered: a process that has forgotten looks once more.
//!
//! The look finds the first in line, and the hand-over serves just these. So few are looked at before what was found is
//! handed over: meanwhile a session may come to be first whose place was taken earlier and is committed only now.

use crate::base::limits;
use crate::call::Call;
use crate::lease::handover::Seen;
use crate::lease::line::{First, Lines};
use crate::lease::row::Held;
use crate::pg::clock;
use pgrx::Uuid;
use std::collections::{BTreeMap, HashMap};

/// Leases that are looked at before what was found is handed over, which takes longer than to look at as many.
const PAGE: usize = 1_000;

/// Leases of dead sessions that have been looked at, as far as they are waited for.
#[derive(Default)]
pub struct Page {
    /// The first in line for each.
    pub first: BTreeMap<String, First>,
    /// Their rows.
    pub seen: Seen,
    /// Whose they are.
    pub holders: Vec<Uuid>,
    /// Whether there are no more to look at.
    pub is_last: bool,
}

/// How far one has come with a session.
#[derive(Clone)]
enum Reached {
    /// With the leases of the resources up to this one.
    After(String),
    End,
}

/// What has been looked at.
#[derive(Default)]
pub struct Looked(HashMap<Uuid, Reached>);

/// What one pass may look at yet.
pub struct Looks(usize);

impl Looks {
    pub fn of_a_pass() -> Looks {
        Looks(limits::MAX_LOOKS)
    }

    pub fn are_spent(&self) -> bool {
        self.0 == 0
    }
}

impl Looked {
    /// Looks at the next leases, until `most` have been found that are waited for.
    pub fn next(&mut self, call: &Call, sessions: &[Uuid], most: usize, looks: &mut Looks) -> Page {
        if self.0.len() > limits::MAX_REMEMBERED {
            self.0.clear();
        }
        let (held, mut lines) = (Held::open(), Lines::of(call, None));
        let (mut page, mut left) = (Page::default(), PAGE);
        for session in sessions {
            let after = match self.0.get(session) {
                Some(Reached::End) => continue,
                Some(Reached::After(resource)) => Some(resource.as_str()),
                None => None,
            };
            let reached = held.each(*session, after, |resource, row| {
                pgrx::check_for_interrupts!();
                looks.0 -= 1;
                left -= 1;
                if let Some(first) = lines.first(&resource) {
                    page.first.insert(resource.clone(), first);
                    page.seen.insert(resource.clone(), row);
                    page.holders.push(*session);
                }
                (page.first.len() == most || left == 0 || looks.are_spent()).then_some(resource)
            });
            for resource in lines.leaving.drain(..) {
                // Its lease is freed, and has a waiter after all if that transaction is rolled back.
                call.seam().judge_at(&resource, clock::now());
            }
            let full = reached.is_some();
            self.0.insert(*session, reached.map_or(Reached::End, Reached::After));
            if full {
                return page;
            }
        }
        page.is_last = true;
        page
    }

    pub fn forget<'a>(&mut self, sessions: impl IntoIterator<Item = &'a Uuid>) {
        for session in sessions {
            self.0.remove(session);
        }
    }
}
