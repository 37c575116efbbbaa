//! The row of a lease: how it is read, locked and written. See [`crate::pg::table`] for why no function here waits or
//! fails.
//!
//! Each change of owner makes a new version of the row. The index by seats is not unique. A unique one would make
//! PostgreSQL look at all versions of the row with each change: thousands while an old snapshot is open. A seat still
//! has only one row: [`crate::lease::grant`] makes the first one under a lock, and later changes lock the row first. In
//! the index the fence comes after the seat, and fences grow. So the last index entry has the version that counts, and
//! a read of one seat starts there. A scan of many seats reads a seat with many versions in the same way.

mod held;

pub use held::{Held, free_rows, has_or_had_any, held_by, may_have_any, of_session, some_of_session};

use crate::pg::spi::Value;
use crate::pg::table::{Flight, Key, Locked, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{catalog, clock};
use pgrx::Uuid;
use pgrx::pg_sys::{Datum, ItemPointerData, Oid, TransactionId};

/// A slot of a resource: a permit of a semaphore, a partition of a group, or slot 0 of an exclusive lease.
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
    /// `None` if the lease is released.
    pub session: Option<Uuid>,
    pub fence: i64,
    pub timeline: i32,
    /// In microseconds since 2000.
    pub released_at: Option<i64>,
    /// Whether the lease was freed because its session had expired.
    pub expired: bool,
    /// Whether the resource is a semaphore, a group or a bridge.
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
            released_at: row.get(column::RELEASED_AT),
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

/// The state of a slot, uncommitted changes of other transactions included.
#[derive(Clone, Copy, Debug)]
pub enum Probe {
    Absent,
    /// Another transaction is making the slot's first row (`None`), or changing the given one.
    InFlight(Option<LeaseRow>),
    Row(LeaseRow),
}

impl Probe {
    /// Adds the next row of the same slot that a dirty scan shows. While a row is changed, the scan shows the old row
    /// and the new one, in any order.
    fn and(self, row: LeaseRow, flight: Flight) -> Probe {
        match (flight, self) {
            (Flight::None, _) => Probe::Row(row),
            (Flight::Inserting, Probe::InFlight(_)) => self,
            (Flight::Inserting, _) => Probe::InFlight(None),
            (Flight::Changing, _) => Probe::InFlight(Some(row)),
        }
    }
}

/// The number of looks for a row that an update is moving.
const PROBES: usize = 3;

/// The table of leases.
pub struct Leases(Table);

impl Leases {
    pub fn open() -> Leases {
        let is_there = || catalog::relation(c"_leases_seat") != Oid::INVALID;
        // Before 0.3.0 the primary key was the seat. The lock may wait for an update of the extension, which makes the
        // index; so this looks again.
        let by_seat = is_there() || {
            catalog::lock(c"_leases");
            is_there()
        };
        Leases(Table::open(c"_leases", if by_seat { c"_leases_seat" } else { c"_leases_pkey" }))
    }

    /// Returns what a dirty scan sees. It may see `Absent` for a row that an update is moving, so the caller must look
    /// again when it locks the row.
    pub fn glance(&self, resource: &str, slot: i32) -> Probe {
        self.look_at(Sight::Dirty, resource, slot).0
    }

    /// Returns the state of a slot.
    pub fn probe(&self, resource: &str, slot: i32) -> Probe {
        if !self.0.has_entry(&[Key::Text(resource), Key::Int(slot)]) {
            return Probe::Absent;
        }
        for _ in 0..PROBES {
            let seen = self.glance(resource, slot);
            // A dirty scan may miss a row that an update is moving.
            if !matches!(seen, Probe::Absent) || self.row(resource, slot).is_none() {
                return seen;
            }
        }
        Probe::InFlight(None)
    }

    /// Returns the row of a slot that is committed or that this transaction wrote.
    pub fn row(&self, resource: &str, slot: i32) -> Option<LeaseRow> {
        match self.look_at(Sight::Latest, resource, slot).0 {
            Probe::Row(row) => Some(row),
            _ => None,
        }
    }

    /// Returns the row of a slot if `mine` accepts it, even while another transaction changes it: that change may be
    /// rolled back. With `wait`, waits for the end of that transaction first.
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

    /// Returns whether the calling statement sees the row of a slot under a fence.
    pub fn is_seen(&self, resource: &str, slot: i32, fence: i64) -> bool {
        let key = [Key::Text(resource), Key::Int(slot), Key::Long(fence)];
        let key = &key[..key.len().min(self.0.key_columns())];
        self.0.find(Sight::Caller, key, |row, _| Some(row.required::<i64>(column::FENCE) == fence)) == Some(true)
    }

    /// Returns the state of a slot, and the sessions that another transaction is giving it to.
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

    /// Shows `visit` the state of each slot of a resource that has a row, in order, beginning with slot `from`, and the
    /// sessions to which open transactions are giving that slot. Stops when `visit` returns an answer.
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

    /// Returns the states of all slots of a resource that have a row, in order, and the sessions that other
    /// transactions are giving a slot.
    pub fn slots(&self, resource: &str) -> (Vec<(i32, Probe)>, Vec<Uuid>) {
        let (mut slots, mut arriving) = (Vec::<(i32, Probe)>::new(), Vec::new());
        self.each(Sight::Dirty, resource, 0, |slot, probe, sessions| {
            slots.push((slot, probe));
            arriving.extend(sessions);
            None::<()>
        });
        // A dirty scan may miss a row that an update is moving.
        for row in self.rows(resource) {
            if let Err(at) = slots.binary_search_by_key(&row.slot, |(slot, _)| *slot) {
                slots.insert(at, (row.slot, Probe::InFlight(Some(row))));
            }
        }
        (slots, arriving)
    }

    /// Returns whether any slot numbered `from` or higher has a holder, living or not, or is being changed by another
    /// transaction.
    pub fn is_any_taken(&self, resource: &str, from: i32) -> bool {
        let taken = |probe: Probe| (!matches!(probe, Probe::Row(row) if row.session.is_none())).then_some(());
        // A dirty scan may miss a row that an update is moving.
        [Sight::Dirty, Sight::Latest]
            .into_iter()
            .any(|sight| self.each(sight, resource, from, |_, probe, _| taken(probe)).is_some())
    }

    /// Returns whether a slot may have a row.
    pub fn has_entry(&self, resource: &str, slot: i32) -> bool {
        self.0.has_entry(&[Key::Text(resource), Key::Int(slot)])
    }

    /// Returns the rows of a resource that are committed or that this transaction wrote, in the order of slots.
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

    /// Returns the row that has a fence, if it is committed or this transaction wrote it.
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

    /// Returns when a slot was last given or freed, in microseconds since 2000.
    pub fn changed_at(&self, resource: &str, slot: i32) -> Option<i64> {
        let time = |row: &Tuple, _| row.get(column::RELEASED_AT).or_else(|| row.get(column::GRANTED_AT));
        self.0.find(Sight::Latest, &[Key::Text(resource), Key::Int(slot)], time)
    }

    /// Returns the rows of the slots that have a greater fence, the greatest first.
    pub fn newer(&self, resource: &str, fence: i64) -> Vec<LeaseRow> {
        let mut rows: Vec<LeaseRow> = self.rows(resource).into_iter().filter(|row| row.fence > fence).collect();
        rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.fence));
        rows
    }

    /// Locks a row against changes, to the end of the transaction.
    pub fn lock(&self, tid: ItemPointerData, wait: bool) -> Locked {
        self.0.lock(tid, wait)
    }

    /// Locks a row that was read a while ago, waiting if needed. Returns false if the row has changed, or if another
    /// row is at its address (ctid) now.
    pub fn lock_again(&self, resource: &str, seen: &LeaseRow) -> bool {
        self.0.lock(seen.tid, true) == Locked::Mine
            && self.is_of(resource, seen.slot)
            && LeaseRow::read(&self.0.row()).fence == seen.fence
    }

    /// Returns whether the row that was just locked is the row of this slot.
    fn is_of(&self, resource: &str, slot: i32) -> bool {
        let row = self.0.row();
        row.required::<i32>(column::SLOT) == slot && *row.required::<Text>(column::RESOURCE) == *resource
    }

    /// Returns whether rows may be written by the functions below. Otherwise statements write them, which takes longer.
    pub fn is_plain(&self) -> bool {
        self.0.has_columns(column::COUNT) && self.0.is_plain()
    }

    /// Writes the owner of a slot that the caller has claimed. `tid` is the slot's row, which is locked; `None` if
    /// there is no row.
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
            // Without the row, another call could grant the slot too.
            pgrx::error!("eskit_lease could not write who owns slot {slot} of resource \"{resource}\"");
        }
    }

    /// Frees a slot whose row the caller has locked. `expired`: its session had expired.
    pub fn free(&self, resource: &str, slot: i32, tid: ItemPointerData, expired: bool) {
        let now = Datum::from(clock::timestamp());
        let columns =
            [(column::SESSION, None), (column::RELEASED_AT, Some(now)), (column::EXPIRED, Some(expired.into()))];
        if self.stand_at(resource, slot, tid) {
            self.0.update(&changes(&columns));
        }
    }

    /// Moves a slot whose row the caller has locked to another session, under the same fence. Returns `None` if the
    /// table needs a statement.
    pub fn pass_on(&self, resource: &str, slot: i32, tid: ItemPointerData, session: Uuid) -> Option<u64> {
        let change = [(column::SESSION as i32, Value::Uuid(session).datum())];
        self.0.is_plain().then(|| u64::from(self.stand_at(resource, slot, tid) && self.0.update(&change)))
    }

    /// Deletes the rows of `slot` and of all slots with higher numbers. Returns `None` if the table needs a statement.
    pub fn delete_from(&self, resource: &str, slot: i32) -> Option<u64> {
        if slot == 0 {
            return self.0.delete_rows(&[Key::Text(resource)]);
        }
        let beyond = self.rows(resource).into_iter().filter(|row| row.slot >= slot);
        beyond.map(|row| self.0.delete_rows(&[Key::Text(resource), Key::Int(row.slot)])).sum()
    }

    /// Positions the table at the row of a slot for an update, and returns whether there is one. The caller has locked
    /// the row. Finds it by `tid`; or by its key, if this transaction has changed it since, as when a grant is taken
    /// back.
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
