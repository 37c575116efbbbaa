//! The row of a lease as it stands, and the claim to it. See [`crate::table`] for why nothing here waits or fails.

use crate::table::{Flight, Key, Locked, Sight, Table};
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;

#[derive(Clone, Copy, Debug)]
pub struct LeaseRow {
    pub tid: ItemPointerData,
    /// `None` when released.
    pub session: Option<Uuid>,
    pub fence: i64,
    pub timeline: i32,
}

/// What stands for a name, what others have not committed included.
#[derive(Clone, Copy, Debug)]
pub enum Probe {
    Absent,
    /// Somebody is in the middle of making it, or of changing the row that stands until then.
    InFlight(Option<LeaseRow>),
    Row(LeaseRow),
}

/// How often a row that is just being moved is looked for.
const PROBES: usize = 3;

/// The table of leases.
pub struct Leases(Table);

impl Leases {
    pub fn open() -> Leases {
        Leases(Table::open(c"_leases", c"_leases_pkey"))
    }

    /// What a dirty scan sees: with luck `Absent` of a row that is just being moved. For whoever claims the row and so looks again.
    pub fn glance(&self, resource: &str, slot: i32) -> Probe {
        self.look(Sight::Dirty, resource, slot)
    }

    /// What stands.
    pub fn probe(&self, resource: &str, slot: i32) -> Probe {
        for _ in 0..PROBES {
            let seen = self.glance(resource, slot);
            // A dirty scan cannot say that there is no row.
            if !matches!(seen, Probe::Absent) || matches!(self.look(Sight::Latest, resource, slot), Probe::Absent) {
                return seen;
            }
        }
        Probe::InFlight(None)
    }

    fn look(&self, sight: Sight, resource: &str, slot: i32) -> Probe {
        let mut found = Probe::Absent;
        self.0.scan(sight, &[Key::Text(resource), Key::Int(slot)], |row, flight| {
            let lease = LeaseRow {
                tid: row.tid(),
                session: row.get(3),
                fence: row.get(4).unwrap_or(0),
                timeline: row.get(5).unwrap_or(0),
            };
            found = match flight {
                Flight::None => Probe::Row(lease),
                Flight::Inserting if matches!(found, Probe::InFlight(_)) => found,
                Flight::Inserting => Probe::InFlight(None),
                Flight::Changing => Probe::InFlight(Some(lease)),
            };
            None::<()>
        });
        found
    }

    /// Locks the row against changes, to the end of the transaction.
    pub fn lock(&self, tid: ItemPointerData, wait: bool) -> Locked {
        self.0.lock(tid, wait)
    }
}
