//! The row of a lease as it stands, and the claim to it. See [`crate::pg::table`] for why nothing here waits or fails.
//!
//! Each change of hands makes a new version of the row. The index by seats is not unique: PostgreSQL would look at all
//! versions of the row with each change, which are thousands while an old snapshot is open. A seat has one row all the
//! same: [`crate::lease::grant`] makes the first one under a lock, and a row that is there is locked before it is
//! changed. In the index the fence comes after the seat, and fences grow: the version that counts is the last one, and
//! is read from there. Where many seats are read, one with many versions is read so on its own.

mod held;

pub use held::{Held, free_rows, has_or_had_any, held_by, may_have_any, of_session, some_of_session};

use crate::pg::spi::Value;
use crate::pg::table::{Flight, Key, Locked, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{catalog, clock};
use pgrx::Uuid;
use pgrx::pg_sys::{Datum, ItemPointerData, Oid, TransactionId};

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
            slot: row.required(column::SLOT),
            session: row.get(column::SESSION),
            fence: row.required(column::FENCE),
            timeline: row.required(column::TIMELINE),
            expired: row.required(column::EXPIRED),
            declared: row.added(column::DECLARED, false),
            made_by: row.made_by(),
        }
    }
}

/// The new owner of a slot, and its fence.
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
    /// Another transaction is making it, or changing the row that stands until then.
    InFlight(Option<LeaseRow>),
    Row(LeaseRow),
}

impl Probe {
    /// Adds what a dirty scan shows next of the same slot: while it is changed, the old row and the new one, in any
    /// order.
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
        let is_there = || catalog::relation(c"_leases_seat") != Oid::INVALID;
        // Before 0.3.0 a seat was the primary key. What the lock waits for may be the update.
        let by_seat = is_there() || {
            catalog::lock(c"_leases");
            is_there()
        };
        Leases(Table::open(c"_leases", if by_seat { c"_leases_seat" } else { c"_leases_pkey" }))
    }

    /// Returns what a dirty scan sees: with luck `Absent` of a row that is just being moved. For a caller that claims
    /// the row, and so looks again.
    pub fn glance(&self, resource: &str, slot: i32) -> Probe {
        self.look(Sight::Dirty, resource, slot)
    }

    /// Returns what stands.
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

    /// Returns the row that is committed, or was written by this transaction.
    pub fn row(&self, resource: &str, slot: i32) -> Option<LeaseRow> {
        match self.look(Sight::Latest, resource, slot) {
            Probe::Row(row) => Some(row),
            _ => None,
        }
    }

    /// Returns the row of a lease for which `mine` holds, also while another transaction changes it, which may come to
    /// nothing. With `wait`, waits for the end of that transaction.
    pub fn find(&self, resource: &str, slot: i32, wait: bool, mine: impl Fn(&LeaseRow) -> bool) -> Option<LeaseRow> {
        loop {
            match self.probe(resource, slot) {
                Probe::Row(row) => return Some(row).filter(&mine),
                Probe::InFlight(Some(row)) if mine(&row) && wait => {
                    self.lock(row.tid, true);
                    pgrx::check_for_interrupts!();
                }
                Probe::InFlight(Some(row)) => return Some(row).filter(&mine),
                Probe::InFlight(None) | Probe::Absent => return None,
            }
        }
    }

    /// Returns whether the statement that has called reads the row of a slot under a fence.
    pub fn is_seen(&self, resource: &str, slot: i32, fence: i64) -> bool {
        let key = [Key::Text(resource), Key::Int(slot), Key::Long(fence)];
        let key = &key[..key.len().min(self.0.key_columns())];
        self.0.find(Sight::Caller, key, |row, _| Some(row.required::<i64>(column::FENCE) == fence)) == Some(true)
    }

    fn look(&self, sight: Sight, resource: &str, slot: i32) -> Probe {
        self.look_at(sight, resource, slot).0
    }

    /// The same, with the sessions that another transaction is giving the slot.
    fn look_at(&self, sight: Sight, resource: &str, slot: i32) -> (Probe, Vec<Uuid>) {
        let (mut found, mut arriving) = (Probe::Absent, Vec::new());
        self.0.find(sight, &[Key::Text(resource), Key::Int(slot)], |row, flight| {
            let lease = LeaseRow::read(row);
            found = found.and(lease, flight);
            arriving.extend(lease.session.filter(|_| flight == Flight::Inserting));
            // A row that no transaction is changing is the only one of its key.
            (flight == Flight::None).then_some(())
        });
        (found, arriving)
    }

    /// Shows what stands for the slots of a resource that have a row, from one on and in order, and which sessions are
    /// in the middle of getting them; until `visit` has an answer.
    fn each<T>(
        &self,
        sight: Sight,
        resource: &str,
        from: i32,
        mut visit: impl FnMut(i32, Probe, Vec<Uuid>) -> Option<T>,
    ) -> Option<T> {
        let mut from = from;
        loop {
            let key = [Key::Text(resource), Key::IntFrom(from)];
            let mut walk = self.0.walk_versions(sight, &key);
            let mut seen = None::<(i32, Probe, Vec<Uuid>)>;
            let stale = loop {
                let flight = match walk.step() {
                    Stand::Row(flight) => flight,
                    Stand::Stale => break Some(LeaseRow::read(&self.0.row()).slot),
                    Stand::End => break None,
                };
                let lease = LeaseRow::read(&self.0.row());
                if let Some((slot, probe, arriving)) = seen.take_if(|(slot, ..)| *slot != lease.slot)
                    && let Some(answer) = visit(slot, probe, arriving)
                {
                    return Some(answer);
                }
                let (_, probe, arriving) = seen.get_or_insert((lease.slot, Probe::Absent, Vec::new()));
                *probe = probe.and(lease, flight);
                arriving.extend(lease.session.filter(|_| flight == Flight::Inserting));
            };
            drop(walk);
            if let Some((slot, probe, arriving)) = seen.filter(|(slot, ..)| Some(*slot) != stale)
                && let Some(answer) = visit(slot, probe, arriving)
            {
                return Some(answer);
            }
            let slot = stale?;
            let (probe, arriving) = self.look_at(sight, resource, slot);
            if !matches!(probe, Probe::Absent)
                && let Some(answer) = visit(slot, probe, arriving)
            {
                return Some(answer);
            }
            from = slot + 1;
        }
    }

    /// Returns what stands for every slot of a resource that has a row, in order; and the sessions that other
    /// transactions are giving one.
    pub fn slots(&self, resource: &str) -> (Vec<(i32, Probe)>, Vec<Uuid>) {
        let (mut slots, mut arriving) = (Vec::<(i32, Probe)>::new(), Vec::new());
        self.each(Sight::Dirty, resource, 0, |slot, probe, sessions| {
            slots.push((slot, probe));
            arriving.extend(sessions);
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

    /// Returns whether any slot from one on has a holder, living or not, or is in another transaction's hands.
    pub fn is_any_taken(&self, resource: &str, from: i32) -> bool {
        let taken = |probe: Probe| (!matches!(probe, Probe::Row(row) if row.session.is_none())).then_some(());
        // A dirty scan misses a row that is just being moved.
        [Sight::Dirty, Sight::Latest]
            .into_iter()
            .any(|sight| self.each(sight, resource, from, |_, probe, _| taken(probe)).is_some())
    }

    /// Returns whether a slot may have a row.
    pub fn has_entry(&self, resource: &str, slot: i32) -> bool {
        self.0.has_entry(&[Key::Text(resource), Key::Int(slot)])
    }

    /// Returns the rows of a resource that are committed, or were written by this transaction; in the order of slots.
    pub fn rows(&self, resource: &str) -> Vec<LeaseRow> {
        let mut rows = Vec::new();
        self.each(Sight::Latest, resource, 0, |_, probe, _| {
            rows.extend(match probe {
                Probe::Row(row) => Some(row),
                _ => None,
            });
            None::<()>
        });
        rows
    }

    /// Returns the row of the lease under a fence: committed, or written by this transaction.
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

    /// Returns whether any slot of the resource has a greater fence.
    pub fn has_newer(&self, resource: &str, fence: i64) -> bool {
        self.rows(resource).iter().any(|row| row.fence > fence)
    }

    /// Locks the row against changes, to the end of the transaction.
    pub fn lock(&self, tid: ItemPointerData, wait: bool) -> Locked {
        self.0.lock(tid, wait)
    }

    /// The same for a row that was seen a while ago: whether it is still the one of that resource and fence. Its place
    /// may be another's now.
    pub fn lock_again(&self, resource: &str, seen: &LeaseRow) -> bool {
        self.0.lock(seen.tid, true) == Locked::Mine
            && self.is_of(resource, seen.slot)
            && LeaseRow::read(&self.0.row()).fence == seen.fence
    }

    /// Returns whether the row that has just been locked is that of a slot.
    fn is_of(&self, resource: &str, slot: i32) -> bool {
        let row = self.0.row();
        row.required::<i32>(column::SLOT) == slot && *row.required::<Text>(column::RESOURCE) == *resource
    }

    /// Returns whether rows may be written as below, and not by statements, which take longer.
    pub fn is_plain(&self) -> bool {
        self.0.has_columns(column::COUNT) && self.0.is_plain()
    }

    /// Writes the owner of a slot, which the caller has claimed: without a row, or with one that is locked, `tid`.
    pub fn give(&self, resource: &str, slot: i32, tid: Option<ItemPointerData>, owner: &Owner) {
        let now = Datum::from(clock::timestamp());
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
            Some(tid) => {
                let stands = self.stand_at(resource, slot, tid);
                debug_assert!(!stands || LeaseRow::read(&self.0.row()).fence < owner.fence, "fences grow");
                stands && self.0.update(&changes(&columns))
            }
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

    /// Frees a slot, whose row the caller has locked. `expired`: it is taken from a session that had expired.
    pub fn free(&self, resource: &str, slot: i32, tid: ItemPointerData, expired: bool) {
        let now = Datum::from(clock::timestamp());
        let columns =
            [(column::SESSION, None), (column::RELEASED_AT, Some(now)), (column::EXPIRED, Some(expired.into()))];
        if self.stand_at(resource, slot, tid) {
            self.0.update(&changes(&columns));
        }
    }

    /// Gives a slot, whose row the caller has locked, to another session under the same fence. `None` where that takes
    /// a statement.
    pub fn pass_on(&self, resource: &str, slot: i32, tid: ItemPointerData, session: Uuid) -> Option<u64> {
        let change = [(column::SESSION as i32, Value::Uuid(session).datum())];
        self.0.is_plain().then(|| u64::from(self.stand_at(resource, slot, tid) && self.0.update(&change)))
    }

    /// Deletes the rows of all slots from one on. `None` where that takes a statement.
    pub fn delete_from(&self, resource: &str, slot: i32) -> Option<u64> {
        if slot == 0 {
            return self.0.delete_rows(&[Key::Text(resource)]);
        }
        let beyond = self.rows(resource).into_iter().filter(|row| row.slot >= slot);
        beyond.map(|row| self.0.delete_rows(&[Key::Text(resource), Key::Int(row.slot)])).sum()
    }

    /// Stands at the row of a slot, which the caller has locked, for it to be updated: by its place, or by its key if
    /// this transaction has written it since, as one that was granted and is taken back. Whether there is one.
    fn stand_at(&self, resource: &str, slot: i32, tid: ItemPointerData) -> bool {
        let is_mine = |row: &Tuple, _: Flight| {
            debug_assert!(row.is_mine(), "a row that is written is the one that was locked");
            Some(())
        };
        self.lock(tid, false) == Locked::Mine && self.is_of(resource, slot)
            || self.0.find(Sight::Latest, &[Key::Text(resource), Key::Int(slot)], is_mine).is_some()
    }
}

fn changes(columns: &[(usize, Option<Datum>)]) -> Vec<(i32, Option<Datum>)> {
    columns.iter().map(|(column, value)| (*column as i32, *value)).collect()
}
