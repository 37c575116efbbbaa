//! Leases of the dead that sessions wait for: these are handed over before anything else is taken from the dead.
//!
//! A dead session may have had a million leases that no session waits for, and it takes a thousand passes to delete
//! them. So each lease is looked at only once, and that is enough. The ring brings a lease back in three cases: a
//! session comes to wait for it later, a transaction gives up what was in the way, or a pass could not hand it over.
//! Progress need not be kept: a process that has forgotten it looks once more.
//!
//! The look finds the first in line, and the hand-over serves exactly that session. Between the two, another session
//! may become the first: one that took its place earlier and commits only now. To keep that time short, a page of
//! leases is looked at, and handed over before the next.

use crate::base::limits;
use crate::call::Call;
use crate::lease::handover::Seen;
use crate::lease::line::{First, Lines};
use crate::lease::row::Held;
use crate::pg::clock;
use pgrx::Uuid;
use std::collections::{BTreeMap, HashMap};

/// The leases that are looked at before the found ones are handed over. Handing them over takes longer than the look.
const PAGE: usize = 1_000;

/// The leases of dead sessions that have been looked at and are waited for.
#[derive(Default)]
pub struct Page {
    /// The first in line for each resource.
    pub first: BTreeMap<String, First>,
    /// The rows of the leases.
    pub seen: Seen,
    /// The dead holders of the leases.
    pub holders: Vec<Uuid>,
    /// Whether there are no more leases to look at.
    pub is_last: bool,
}

/// How far the looks have come with a session.
#[derive(Clone)]
enum Reached {
    /// The leases up to this resource have been looked at.
    After(String),
    End,
}

/// How far the looks have come, by session.
#[derive(Default)]
pub struct Looked(HashMap<Uuid, Reached>);

/// The number of looks that one pass has left.
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
                // The lease is freed now. If the transaction that gives up the place is rolled back, the lease has a
                // waiter after all.
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
