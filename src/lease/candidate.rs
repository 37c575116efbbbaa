//! What a grant is asked for, and what came of it: passed between those who choose an owner and those who write it.

use super::declaration::Kind;
use super::row::{LeaseRow, Seat};
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub struct Candidate {
    pub resource: String,
    pub slot: i32,
    /// What the resource is declared as, with how many slots; `None` for an exclusive lease.
    pub declared: Option<(Kind, i32)>,
    /// The row as probed; `None` for a slot without one.
    pub row: Option<LeaseRow>,
    /// Whether this transaction releases the lease, and so keeps fenced transactions away from it.
    pub released: bool,
    /// Whether the grantee is the successor of the session that has the lease.
    pub inherited: bool,
    pub grantee: SlotRef,
    /// The grantee's places in the line of the resource.
    pub places: Vec<ItemPointerData>,
    /// The dead sessions without whose deaths there would be nothing to grant (see [`crate::lease::semaphore`]).
    pub gone: Rc<[Uuid]>,
}

impl Candidate {
    /// Returns the session that has the lease, if that is another one, and the row.
    pub fn taken_from(&self) -> Option<(Uuid, LeaseRow)> {
        let row = self.row?;
        row.session.filter(|from| *from != self.grantee.session()).map(|from| (from, row))
    }

    /// Returns whether the grantee has the lease already.
    pub fn is_own(&self) -> bool {
        self.row.is_some_and(|row| row.session == Some(self.grantee.session()))
    }
}

/// The session that was granted a slot, and its fence.
#[derive(Clone, Copy)]
pub struct Grant {
    pub fence: i64,
    pub session: Uuid,
}

/// What came of a hand-over.
#[derive(Default)]
pub struct HandOver {
    /// The one session that may be granted to; `None` where the first in line is.
    pub(super) only: Option<Uuid>,
    pub granted: HashMap<Seat, Grant>,
    /// Waited for and free or dead, but in another transaction's hands for now.
    pub busy: HashSet<String>,
    /// Waited for, and held by living sessions.
    pub held: Vec<(String, LeaseRow)>,
}
