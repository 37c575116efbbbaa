//! Which leases of the dead somebody waits for: these are handed over before anything else is taken from the dead.
//!
//! Each lease is looked at once, for a dead session may have had a million that nobody waits for, which are taken away in a thousand passes.
//! That is enough: whoever comes to wait for it later, or gives up what is in the way, has it judged by way of the ring, and so it is with what
//! was found waited for and could not be handed over. Nothing here has to be remembered: whoever has forgotten looks once more. Who is first in
//! line is asked by the hand-over, when all have been looked at: by then it may be somebody else.

use crate::call::Call;
use crate::claim::Held;
use crate::queue;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashMap;

/// Leases that one pass looks at: 50 ms, during which nobody else is handed over to.
const MAX_LOOKS: usize = 50_000;
/// Sessions that are remembered.
const MAX_SESSIONS: usize = 100_000;

/// A lease of a dead session, which is waited for: the resource, the session, and where the row is.
pub type Waited = (String, Uuid, ItemPointerData);

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
        Looks(MAX_LOOKS)
    }

    pub fn are_spent(&self) -> bool {
        self.0 == 0
    }
}

impl Looked {
    /// The next leases that are waited for, up to `most`, or perhaps fewer if the looks are spent.
    pub fn next(&mut self, call: &Call, sessions: &[Uuid], most: usize, looks: &mut Looks) -> Vec<Waited> {
        if self.0.len() > MAX_SESSIONS {
            self.0.clear();
        }
        let (held, mut waited) = (Held::open(), Vec::new());
        for session in sessions {
            let after = match self.0.get(session) {
                Some(Reached::End) => continue,
                Some(Reached::After(resource)) => Some(resource.as_str()),
                None => None,
            };
            let reached = held.each(*session, after, |resource, tid| {
                pgrx::check_for_interrupts!();
                looks.0 -= 1;
                if queue::may_be_waited_for(call, &resource) {
                    waited.push((resource.clone(), *session, tid));
                }
                (waited.len() == most || looks.are_spent()).then_some(resource)
            });
            let full = reached.is_some();
            self.0.insert(*session, reached.map_or(Reached::End, Reached::After));
            if full {
                break;
            }
        }
        waited
    }

    pub fn forget<'a>(&mut self, sessions: impl IntoIterator<Item = &'a Uuid>) {
        for session in sessions {
            self.0.remove(session);
        }
    }
}
