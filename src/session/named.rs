//! Sessions by the name of their consumer and by their role; private sessions are left out.
//!
//! Rows of ended sessions stay in the index while an old snapshot is open. So the sessions of a name are a line with a
//! floor (see [`crate::session::floor`]), in the order in which they were opened. Each is opened under a stripe and
//! later than the last one: at the time of the clock, or a microsecond after the last one if the clock is behind. A
//! floor is also raised under that stripe, because the clock may have been set back.

use super::floor;
use crate::keys;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::table::{Key, Sight, Stand, Table};
use crate::shmem::floors::Lane;
use pgrx::Uuid;
use pgrx::pg_sys::Oid;

const SESSION: usize = 1;
const ROLE: usize = 3;
const OPENED_AT: usize = 6;

/// The number of versions that a look for the sessions of other roles passes.
const LOOKED_THROUGH: usize = 1_000;

pub struct Name<'a> {
    consumer: &'a str,
    role: Oid,
    table: Table,
}

impl<'a> Name<'a> {
    pub fn of(consumer: &'a str, role: Oid) -> Name<'a> {
        Name { consumer, role, table: Table::open(c"_sessions", c"_sessions_consumer") }
    }

    /// Returns whether the index has an order. Before 0.3.0 it did not contain the time of opening.
    fn is_line(&self) -> bool {
        self.table.key_columns() > 2
    }

    fn stripe(&self) -> Guard {
        Guard::Stripe(keys::stripe(self.consumer, 0))
    }

    fn lane(&self) -> Lane {
        floor::lane(c"_sessions", &format!("{} {}", self.role.to_u32(), self.consumer))
    }

    fn key(&self, from: i64) -> Vec<Key<'a>> {
        vec![Key::Text(self.consumer), Key::Oid(self.role), Key::TimeFrom(from)]
    }

    /// Opens a session of this name: calls `write` with the time of opening.
    pub fn open(&self, write: impl FnOnce(i64)) {
        self.stripe().lock(Mode::Exclusive);
        let mut at = clock::timestamp();
        if self.is_line() {
            let key = [Key::Text(self.consumer), Key::Oid(self.role)];
            let mut walk = self.table.walk_versions(Sight::Latest, &key).backward();
            if !matches!(walk.one_version(), Stand::End) {
                at = at.max(self.table.row().required::<i64>(OPENED_AT) + 1);
            }
            at = at.max(floor::of(self.lane()));
        }
        write(at);
        self.stripe().unlock(Mode::Exclusive);
    }

    /// Returns the sessions of this name that have a row.
    pub fn sessions(&self) -> Vec<Uuid> {
        let (mut found, mut from) = (Vec::new(), None);
        while let Some(floor) = self.read(from, &mut found) {
            from = Some(floor);
        }
        found
    }

    /// Returns sessions of this consumer that other roles have opened and that have a row. Looks at the first
    /// [`LOOKED_THROUGH`] versions of rows only.
    pub fn of_other_roles(&self) -> Vec<Uuid> {
        let key = [Key::Text(self.consumer)];
        let mut walk = self.table.walk_versions(Sight::Latest, &key);
        let mut found = Vec::new();
        for _ in 0..LOOKED_THROUGH {
            match walk.one_version() {
                Stand::End => break,
                Stand::Stale => (),
                Stand::Row(_) => {
                    let row = self.table.row();
                    found.extend((row.required::<Oid>(ROLE) != self.role).then(|| row.required::<Uuid>(SESSION)));
                }
            }
        }
        found
    }

    /// Reads the sessions from a floor on. Without `from`, it may find and return a floor: no session is below it, and
    /// the caller reads again from there.
    fn read(&self, from: Option<i64>, found: &mut Vec<Uuid>) -> Option<i64> {
        let mut may_ask = from.is_none() && self.is_line();
        let key = match from {
            Some(from) => self.key(from),
            None => vec![Key::Text(self.consumer)],
        };
        let mut walk = self.table.walk_versions(Sight::Latest, &key);
        loop {
            let stand = walk.step();
            let row = self.table.row();
            match stand {
                Stand::Row(_) if row.required::<Oid>(ROLE) == self.role => found.push(row.required(SESSION)),
                Stand::Stale if may_ask && row.required::<Oid>(ROLE) == self.role => {
                    may_ask = false;
                    let at = row.required::<i64>(OPENED_AT);
                    if let Some(floor) = self.raise().filter(|floor| *floor > at) {
                        found.clear();
                        return Some(floor);
                    }
                }
                Stand::Row(_) | Stand::Stale => (),
                Stand::End => return None,
            }
        }
    }

    /// Raises the floor, if no other call is opening a session of this name.
    fn raise(&self) -> Option<i64> {
        if !self.stripe().try_lock(Mode::Exclusive) {
            return None;
        }
        // The walk of `self.table` is still open.
        let table = Name::of(self.consumer, self.role).table;
        let floor = floor::raise(self.lane(), &table, OPENED_AT, |from| self.key(from));
        self.stripe().unlock(Mode::Exclusive);
        Some(floor)
    }
}
