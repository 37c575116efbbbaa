//! The living sessions among the holders of leases and the owners of places.

use super::row::{self, SessionRow};
use super::succession;
use crate::call::Call;
use crate::pg::catalog;
use crate::seam;
use crate::shmem::word::State;
use fnv::FnvHashMap;
use pgrx::Uuid;
use std::cell::RefCell;

/// What other sessions need to know of a living session.
#[derive(Clone, Debug)]
pub struct Holder {
    pub session: Uuid,
    pub consumer: String,
    /// The session for which this one keeps a lease in grace: after a take-over the successor, even before the row says
    /// so.
    pub grace_of: Option<Uuid>,
    /// The session that released the lease in grace.
    pub fencer: Option<Uuid>,
}

/// The number of names that a backend remembers.
const NAMES: usize = 256;

thread_local! {
    /// The names of sessions that are not private; they never change. With them, a caller that is refused repeatedly
    /// does not read the holder's row each time.
    static KNOWN: RefCell<FnvHashMap<Uuid, String>> = RefCell::new(FnvHashMap::default());
}

/// Which of some sessions live: `None` for a dead one.
pub struct Holders(FnvHashMap<Uuid, Option<Holder>>);

impl Holders {
    pub fn of(call: &Call, sessions: impl Iterator<Item = Uuid>) -> Holders {
        let (mut holders, mut unknown) = (FnvHashMap::default(), Vec::new());
        for session in sessions {
            holders.entry(session).or_insert_with(|| {
                let known = remembered(call, session);
                if known.is_none() && !is_dead(call, session) {
                    unknown.push(session);
                }
                known
            });
        }
        for row in living_rows(call, &unknown) {
            remember(&row);
            let SessionRow { session, consumer, grace_of, fencer, .. } = row;
            let grace_of = grace_of.map(|of| succession::successor(of).unwrap_or(of));
            holders.insert(session, Some(Holder { session, consumer, grace_of, fencer }));
        }
        Holders(holders)
    }

    pub fn living(&self, session: Option<Uuid>) -> Option<&Holder> {
        self.0.get(&session?)?.as_ref()
    }
}

/// Returns the rows of the sessions that live.
pub fn living_rows(call: &Call, sessions: &[Uuid]) -> Vec<SessionRow> {
    if sessions.is_empty() {
        return Vec::new();
    }
    row::rows(sessions).into_iter().filter(|row| call.standing_of(row).is_some()).collect()
}

/// Returns whether a slot says that the session is dead; its row does not matter then.
fn is_dead(call: &Call, session: Uuid) -> bool {
    let standing = call.shared.find(call.home, session).and_then(|at| call.shared.look(at));
    standing.is_some_and(|standing| !standing.alive())
}

/// Returns the name of a session that has a row, or that had one when this backend asked before.
pub fn name(session: Uuid) -> Option<String> {
    KNOWN.with_borrow(|known| known.get(&session).cloned()).or_else(|| {
        let row = row::row(session)?;
        remember(&row);
        Some(row.consumer)
    })
}

/// Returns the name of a session as [`name`] does, or `None` if another process has the table of sessions locked.
pub fn name_at_once(session: Uuid) -> Option<String> {
    let known = KNOWN.with_borrow(|known| known.get(&session).cloned());
    known.or_else(|| if catalog::try_lock_all(&[c"_sessions"]) { name(session) } else { None })
}

/// Returns a session from the remembered names, if its slot lives and no transaction has begun to end it. Such a
/// session has a row, and its name has not changed.
fn remembered(call: &Call, session: Uuid) -> Option<Holder> {
    let consumer = KNOWN.with_borrow(|known| known.get(&session).cloned())?;
    let at = call.shared.find(call.home, session)?;
    let lives = call.shared.look(at).is_some_and(|standing| standing.state == State::Alive);
    // If this transaction ends the session, shared memory does not say so yet.
    (lives && !seam::has_ended(session)).then_some(Holder { session, consumer, grace_of: None, fencer: None })
}

fn remember(row: &SessionRow) {
    if row.private {
        return;
    }
    KNOWN.with_borrow_mut(|known| {
        if known.len() == NAMES {
            known.clear();
        }
        known.insert(row.session, row.consumer.clone());
    });
}
