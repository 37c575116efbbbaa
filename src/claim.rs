//! The row of a lease as it stands, and the claim to it. See [`crate::table`] for why nothing here waits or fails.

use crate::catalog;
use crate::spi::Value;
use crate::table::{Flight, Key, Locked, Sight, Table, Tuple, page_of};
use crate::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::{self, Datum, ItemPointerData, Oid, TransactionId};

/// A slot of a resource: the permit of a semaphore, the partition of a group; slot 0 of an exclusive lease.
pub type Seat = (String, i32);

mod column {
    pub const RESOURCE: usize = 1;
    pub const SLOT: usize = 2;
    pub const SESSION: usize = 3;
    pub const FENCE: usize = 4;
    pub const TIMELINE: usize = 5;
    pub const GRANTED_AT: usize = 6;
    pub const RELEASED_AT: usize = 7;
    pub const EXPIRED: usize = 8;
    pub const DECLARED: usize = 9;
    pub const COUNT: usize = DECLARED;
}

#[derive(Clone, Copy, Debug)]
pub struct LeaseRow {
    pub tid: ItemPointerData,
    pub slot: i32,
    /// `None` when released.
    pub session: Option<Uuid>,
    pub fence: i64,
    pub timeline: i32,
    /// Whether it was taken from a session that had expired.
    pub expired: bool,
    /// Whether the resource is a semaphore or a group.
    pub declared: bool,
    pub made_by: TransactionId,
}

impl LeaseRow {
    fn read(row: &Tuple) -> LeaseRow {
        LeaseRow {
            tid: row.tid(),
            slot: row.get(column::SLOT).unwrap_or(0),
            session: row.get(column::SESSION),
            fence: row.get(column::FENCE).unwrap_or(0),
            timeline: row.get(column::TIMELINE).unwrap_or(0),
            expired: row.get(column::EXPIRED).unwrap_or(false),
            declared: row.get(column::DECLARED).unwrap_or(false),
            made_by: row.made_by(),
        }
    }
}

/// Who is to own a slot, and under which fence.
pub struct Owner {
    pub session: Uuid,
    pub fence: i64,
    pub timeline: i32,
    pub declared: bool,
}

/// What stands for a slot, what others have not committed included.
#[derive(Clone, Copy, Debug)]
pub enum Probe {
    Absent,
    /// Somebody is in the middle of making it, or of changing the row that stands until then.
    InFlight(Option<LeaseRow>),
    Row(LeaseRow),
}

impl Probe {
    /// Adds what a dirty scan shows next of the same slot: while it is changed, the old row and the new one, in any order.
    fn and(self, row: LeaseRow, flight: Flight) -> Probe {
        match (flight, self) {
            (Flight::None, _) => Probe::Row(row),
            (Flight::Inserting, Probe::InFlight(_)) => self,
            (Flight::Inserting, _) => Probe::InFlight(None),
            (Flight::Changing, _) => Probe::InFlight(Some(row)),
        }
    }
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
        if !self.0.has_entry(&[Key::Text(resource), Key::Int(slot)]) {
            return Probe::Absent;
        }
        for _ in 0..PROBES {
            let seen = self.glance(resource, slot);
            // A dirty scan cannot say that there is no row.
            if !matches!(seen, Probe::Absent) || self.row(resource, slot).is_none() {
                return seen;
            }
        }
        Probe::InFlight(None)
    }

    /// The row that is committed, or was written by this transaction.
    pub fn row(&self, resource: &str, slot: i32) -> Option<LeaseRow> {
        match self.look(Sight::Latest, resource, slot) {
            Probe::Row(row) => Some(row),
            _ => None,
        }
    }

    /// Whether the statement that has called reads the row of a slot under a fence.
    pub fn is_seen(&self, resource: &str, slot: i32, fence: i64) -> bool {
        let is_it = |row: &Tuple| (row.get(column::FENCE) == Some(fence)).then_some(());
        self.0.scan(Sight::Caller, &[Key::Text(resource), Key::Int(slot)], |row, _| is_it(row)).is_some()
    }

    fn look(&self, sight: Sight, resource: &str, slot: i32) -> Probe {
        let mut found = Probe::Absent;
        self.0.find(sight, &[Key::Text(resource), Key::Int(slot)], |row, flight| {
            found = found.and(LeaseRow::read(row), flight);
            // A row that nobody is changing is the only one of its key.
            (flight == Flight::None).then_some(())
        });
        found
    }

    /// What stands for every slot of a resource that has a row, in order; and which sessions are in the middle of getting one.
    pub fn slots(&self, resource: &str) -> (Vec<(i32, Probe)>, Vec<Uuid>) {
        let (mut slots, mut arriving) = (Vec::<(i32, Probe)>::new(), Vec::new());
        self.0.scan(Sight::Dirty, &[Key::Text(resource)], |row, flight| {
            let lease = LeaseRow::read(row);
            match slots.last_mut().filter(|(slot, _)| *slot == lease.slot) {
                Some((_, known)) => *known = known.and(lease, flight),
                None => slots.push((lease.slot, Probe::Absent.and(lease, flight))),
            }
            if flight == Flight::Inserting {
                arriving.extend(lease.session);
            }
            None::<()>
        });
        // A dirty scan misses a row that is just being moved.
        for row in self.rows(resource) {
            if let Err(at) = slots.binary_search_by_key(&row.slot, |(slot, _)| *slot) {
                slots.insert(at, (row.slot, Probe::InFlight(Some(row))));
            }
        }
        (slots, arriving)
    }

    /// Whether any slot from one on has a holder, living or not, or is in another transaction's hands.
    pub fn is_any_taken(&self, resource: &str, from: i32) -> bool {
        let key = [Key::Text(resource), Key::IntFrom(from)];
        let taken =
            |row: &Tuple, flight| (flight != Flight::None || row.get::<Uuid>(column::SESSION).is_some()).then_some(());
        // A dirty scan misses a row that is just being moved.
        [Sight::Dirty, Sight::Latest].into_iter().any(|sight| self.0.scan(sight, &key, taken).is_some())
    }

    /// Whether a slot may have a row.
    pub fn has_entry(&self, resource: &str, slot: i32) -> bool {
        self.0.has_entry(&[Key::Text(resource), Key::Int(slot)])
    }

    /// The rows of a resource that are committed, or were written by this transaction; in the order of slots.
    pub fn rows(&self, resource: &str) -> Vec<LeaseRow> {
        let mut rows = Vec::new();
        self.0.scan(Sight::Latest, &[Key::Text(resource)], |row, _| {
            rows.push(LeaseRow::read(row));
            None::<()>
        });
        rows
    }

    /// The row of the lease under a fence: committed, or written by this transaction.
    pub fn by_fence(&self, resource: &str, fence: i64) -> Option<LeaseRow> {
        let first = self.row(resource, 0);
        match first {
            Some(row) if row.fence == fence => Some(row),
            // An exclusive lease has no other slots.
            Some(row) if !row.declared => None,
            _ => Table::open(c"_leases", c"_leases_fence").scan(
                Sight::Latest,
                &[Key::Text(resource), Key::Long(fence)],
                |row, _| Some(LeaseRow::read(row)),
            ),
        }
    }

    /// Whether any slot of the resource has a greater fence.
    pub fn has_newer(&self, resource: &str, fence: i64) -> bool {
        self.rows(resource).iter().any(|row| row.fence > fence)
    }

    /// Locks the row against changes, to the end of the transaction.
    pub fn lock(&self, tid: ItemPointerData, wait: bool) -> Locked {
        self.0.lock(tid, wait)
    }

    /// The same for a row that was seen a while ago: whether it is still the one of that resource and fence. Its place may be another's now.
    pub fn lock_again(&self, resource: &str, seen: &LeaseRow) -> bool {
        self.0.lock(seen.tid, true) == Locked::Mine
            && self.is_of(resource, seen.slot)
            && LeaseRow::read(&self.0.row()).fence == seen.fence
    }

    /// Whether the row that has just been locked is that of a slot.
    fn is_of(&self, resource: &str, slot: i32) -> bool {
        let row = self.0.row();
        row.get::<i32>(column::SLOT) == Some(slot)
            && row.get::<Text>(column::RESOURCE).is_some_and(|of| *of == *resource)
    }

    /// Whether rows may be written as below, and not by statements, which take longer.
    pub fn is_plain(&self) -> bool {
        self.0.has_columns(column::COUNT) && self.0.is_plain()
    }

    /// Writes down who owns a slot, which the caller has claimed: without a row, or with one that is locked, `tid`.
    pub fn give(&self, resource: &str, slot: i32, tid: Option<ItemPointerData>, owner: &Owner) {
        // SAFETY: no preconditions
        let now = Datum::from(unsafe { pg_sys::GetCurrentTimestamp() });
        let columns = [
            (column::SESSION, Value::Uuid(owner.session).datum()),
            (column::FENCE, Some(owner.fence.into())),
            (column::TIMELINE, Some(owner.timeline.into())),
            (column::GRANTED_AT, Some(now)),
            (column::RELEASED_AT, None),
            (column::EXPIRED, Some(false.into())),
            (column::DECLARED, Some(owner.declared.into())),
        ];
        let written = match tid {
            Some(tid) => self.stand_at(resource, slot, tid) && self.0.update(&changes(&columns)),
            None => {
                let key = [Value::Text(resource).datum(), Some(slot.into())];
                self.0.try_insert(&key.into_iter().chain(columns.map(|(_, value)| value)).collect::<Vec<_>>())
            }
        };
        if !written {
            // A fence without a row would be one of several.
            pgrx::error!("eskit_lease could not write who owns slot {slot} of resource \"{resource}\"");
        }
    }

    /// Writes down that nobody owns a slot any more, whose row the caller has locked. `expired`: taken from a session that had expired.
    pub fn free(&self, resource: &str, slot: i32, tid: ItemPointerData, expired: bool) {
        // SAFETY: no preconditions
        let now = Datum::from(unsafe { pg_sys::GetCurrentTimestamp() });
        let columns =
            [(column::SESSION, None), (column::RELEASED_AT, Some(now)), (column::EXPIRED, Some(expired.into()))];
        if self.stand_at(resource, slot, tid) {
            self.0.update(&changes(&columns));
        }
    }

    /// Gives a slot to another session under the same fence. `None` where that takes a statement.
    pub fn pass_on(&self, resource: &str, slot: i32, session: Uuid) -> Option<u64> {
        let change = |_: &Tuple| Some(changes(&[(column::SESSION, Value::Uuid(session).datum())]));
        self.0.update_rows(&[Key::Text(resource), Key::Int(slot)], change)
    }

    /// Deletes the rows of all slots from one on. `None` where that takes a statement.
    pub fn delete_from(&self, resource: &str, slot: i32) -> Option<u64> {
        if slot == 0 {
            return self.0.delete_rows(&[Key::Text(resource)]);
        }
        let beyond = self.rows(resource).into_iter().filter(|row| row.slot >= slot);
        beyond.map(|row| self.0.delete_rows(&[Key::Text(resource), Key::Int(row.slot)])).sum()
    }

    /// Stands at the row of a slot, which the caller has locked, for it to be updated: by its place, or by its key if this transaction has written
    /// it since, as one that was granted and is taken back. Whether there is one.
    fn stand_at(&self, resource: &str, slot: i32, tid: ItemPointerData) -> bool {
        self.lock(tid, false) == Locked::Mine && self.is_of(resource, slot)
            || self.0.scan(Sight::Latest, &[Key::Text(resource), Key::Int(slot)], |_, _| Some(())).is_some()
    }
}

fn changes(columns: &[(usize, Option<Datum>)]) -> Vec<(i32, Option<Datum>)> {
    columns.iter().map(|(column, value)| (*column as i32, *value)).collect()
}

/// The leases by who has them.
pub struct Held(Table);

impl Held {
    pub fn open() -> Held {
        Held(Table::open(c"_leases", c"_leases_session"))
    }

    /// Shows what a session has, in the order of names, those behind one if it is given.
    pub fn each<T>(
        &self,
        session: Uuid,
        after: Option<&str>,
        mut visit: impl FnMut(String, LeaseRow) -> Option<T>,
    ) -> Option<T> {
        // Nothing has an empty name.
        let keys = [Key::Uuid(session), Key::After(after.unwrap_or_default())];
        self.0.scan(Sight::Latest, &keys, |row, _| visit(row.get::<Text>(column::RESOURCE)?.0, LeaseRow::read(row)))
    }
}

/// Where up to `most` leases of sessions are, after the first `skip`, with fence and session.
pub fn held_by(sessions: &[Uuid], most: usize, skip: usize) -> Vec<(Seat, LeaseRow)> {
    let seat = |row: &Tuple| {
        let lease = LeaseRow::read(row);
        Some(((row.get::<Text>(column::RESOURCE)?.0, lease.slot), lease))
    };
    page_of(&Held::open().0, sessions, most, skip, seat)
}

/// Up to `most` rows of free slots of a declared resource. None where versions before 0.3.0 have not made the index.
pub fn free_rows(resource: &str, most: usize) -> Vec<LeaseRow> {
    let (index, mut rows) = (c"_leases_free", Vec::new());
    if catalog::relation(index) != Oid::INVALID {
        Table::open(c"_leases", index).scan(Sight::Latest, &[Key::Text(resource)], |row, _| {
            rows.push(LeaseRow::read(row));
            (rows.len() == most).then_some(())
        });
    }
    rows
}

/// Whether a session has a slot of a resource, or another transaction is giving it one or taking one from it.
pub fn may_have_any(resource: &str, session: Uuid) -> bool {
    let key = [Key::Uuid(session), Key::Text(resource)];
    let held = Held::open();
    [Sight::Dirty, Sight::Latest].into_iter().any(|sight| held.0.scan(sight, &key, |_, _| Some(())).is_some())
}

/// The rows of the leases that a session has of one resource.
pub fn of_session(resource: &str, session: Uuid) -> Vec<LeaseRow> {
    some_of_session(resource, session, usize::MAX)
}

/// The same, up to so many.
pub fn some_of_session(resource: &str, session: Uuid, most: usize) -> Vec<LeaseRow> {
    let mut found = Vec::new();
    Held::open().0.scan(Sight::Latest, &[Key::Uuid(session), Key::Text(resource)], |row, _| {
        found.push(LeaseRow::read(row));
        (found.len() >= most).then_some(())
    });
    found
}
