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
    /// Whether this transaction releases it, and so keeps fenced transactions away itself.
    pub released: bool,
    /// Whether the grantee is the successor of the session that has it.
    pub inherited: bool,
    pub grantee: SlotRef,
    /// The grantee's places in the queue of the resource.
    pub places: Vec<ItemPointerData>,
    /// Others without whose deaths there would be nothing to be granted (see [`crate::lease::semaphore`]).
    pub gone: Rc<[Uuid]>,
}

impl Candidate {
    /// The session that has it, if that is another one; and its row.
    pub fn taken_from(&self) -> Option<(Uuid, LeaseRow)> {
        let row = self.row?;
        row.session.filter(|from| *from != self.grantee.session()).map(|from| (from, row))
    }

    /// Whether the grantee has it already.
    pub fn is_own(&self) -> bool {
        self.row.is_some_and(|row| row.session == Some(self.grantee.session()))
    }
}

/// Who has been granted a slot, and under which fence.
#[derive(Clone, Copy)]
pub struct Grant {
    pub fence: i64,
    pub session: Uuid,
}

/// What came of a hand-over.
#[derive(Default)]
pub struct HandOver {
    /// The one session to be granted to, if not whichever is next.
    pub(super) only: Option<Uuid>,
    pub granted: HashMap<Seat, Grant>,
    /// Waited for and free or dead, but in somebody's hands for now.
    pub busy: HashSet<String>,
    /// Waited for, and held by the living.
    pub held: Vec<(String, LeaseRow)>,
}
