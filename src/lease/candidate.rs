//! Requests for grants and their results. The code that chooses an owner passes them to the code that writes it.

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
    /// The declared kind and number of slots; `None` for an exclusive lease.
    pub declared: Option<(Kind, i32)>,
    /// The row as probed; `None` if the slot has no row.
    pub row: Option<LeaseRow>,
    /// Whether this transaction releases the lease, and so has excluded fenced transactions from the fence.
    pub released: bool,
    /// Whether the grantee is the successor of the session that has the lease.
    pub inherited: bool,
    pub grantee: SlotRef,
    /// The grantee's places in the line of the resource.
    pub places: Vec<ItemPointerData>,
    /// The dead sessions whose deaths must be recorded with the grant (see [`crate::lease::semaphore`]).
    pub gone: Rc<[Uuid]>,
}

impl Candidate {
    /// Returns the row and the session that holds the lease, if that is not the grantee.
    pub fn taken_from(&self) -> Option<(Uuid, LeaseRow)> {
        let row = self.row?;
        row.session.filter(|from| *from != self.grantee.session()).map(|from| (from, row))
    }

    /// Returns whether the grantee already holds the lease.
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

/// The result of a hand-over; `only` is its one condition.
#[derive(Default)]
pub struct HandOver {
    /// The only session that may be granted a lease; `None` if each first in line may.
    pub(super) only: Option<Uuid>,
    pub granted: HashMap<Seat, Grant>,
    /// Resources that have waiters but could not be handed over now, for example because another transaction is
    /// changing them.
    pub busy: HashSet<String>,
    /// Resources that have waiters and a living holder.
    pub held: Vec<(String, LeaseRow)>,
}
