//! The leases by holder, and the free slots of a name.
//!
//! Former leases of a session stay in the index by sessions while an old snapshot is open. If a walk meets an old
//! version of a seat in that index, it asks the index by seats which session holds the seat, and goes on with the next
//! seat. A semaphore's free permits are read from the end of their index, where the greatest fences are: old versions
//! come before them.

use super::{LeaseRow, Leases, Probe, Seat, column};
use crate::pg::catalog;
use crate::pg::table::{Flight, Key, Sight, Stand, Table};
use crate::pg::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::Oid;

/// The leases by holder.
pub struct Held(Table);

impl Held {
    pub fn open() -> Held {
        Held(Table::open(c"_leases", c"_leases_session"))
    }

    /// Shows `visit` the leases of a session in the order of names, from the name after `after` if given, until `visit`
    /// returns an answer.
    pub fn each<T>(
        &self,
        session: Uuid,
        after: Option<&str>,
        mut visit: impl FnMut(String, LeaseRow) -> Option<T>,
    ) -> Option<T> {
        // No resource has an empty name.
        let mut after = after.unwrap_or_default().to_owned();
        let mut show = |name: &str, probe| match probe {
            Probe::Row(row) => visit(name.to_owned(), row),
            _ => None,
        };
        loop {
            let key = [Key::Uuid(session), Key::After(&after)];
            match self.seats(Sight::Latest, session, &key, &mut show) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::To(name, slot) => {
                    if let Some(answer) = self.each_of(Sight::Latest, session, &name, slot, &mut show) {
                        return Some(answer);
                    }
                    after = name;
                }
            }
        }
    }

    /// Shows `visit` the slots that a session holds of one resource, from slot `from` on.
    fn each_of<T>(
        &self,
        sight: Sight,
        session: Uuid,
        resource: &str,
        from: i32,
        visit: &mut impl FnMut(&str, Probe) -> Option<T>,
    ) -> Option<T> {
        let mut from = from;
        loop {
            let key = [Key::Uuid(session), Key::Text(resource), Key::IntFrom(from)];
            // Before 0.3.0 the index did not have the slot; then the first look shows all slots.
            let key = &key[..key.len().min(self.0.key_columns())];
            match self.seats(sight, session, key, visit) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::To(_, slot) => from = slot,
            }
        }
    }

    /// Shows the rows of a key, until it meets an old version of a seat. Then it shows what the index by seats says of
    /// this seat, and returns the seat after it.
    fn seats<T>(
        &self,
        sight: Sight,
        session: Uuid,
        key: &[Key],
        visit: &mut impl FnMut(&str, Probe) -> Option<T>,
    ) -> Went<T> {
        let can_go_on = self.0.key_columns() > 2;
        let mut walk = self.0.walk_versions(sight, key);
        let mut last = None::<(String, i32)>;
        let (name, slot) = loop {
            let stand = if can_go_on { walk.step() } else { walk.next().map_or(Stand::End, Stand::Row) };
            let row = match stand {
                Stand::End => return Went::End,
                Stand::Stale | Stand::Row(_) => self.0.row(),
            };
            let (name, lease) = (row.required::<Text>(column::RESOURCE).0, LeaseRow::read(&row));
            let Stand::Row(flight) = stand else { break (name, lease.slot) };
            let probe = if flight == Flight::None { Probe::Row(lease) } else { Probe::InFlight(Some(lease)) };
            if let Some(answer) = visit(&name, probe) {
                return Went::Answer(answer);
            }
            last = Some((name, lease.slot));
        };
        drop(walk);
        let is_new = last.is_none_or(|last| last != (name.clone(), slot));
        let probe = Leases::open().look_at(sight, &name, slot).0;
        let concerns = match probe {
            Probe::Row(row) => row.session == Some(session),
            Probe::InFlight(_) => true,
            Probe::Absent => false,
        };
        match (is_new && concerns).then(|| visit(&name, probe)).flatten() {
            Some(answer) => Went::Answer(answer),
            None => Went::To(name, slot + 1),
        }
    }
}

/// How a walk along the seats of a session ended.
enum Went<T> {
    Answer(T),
    /// The walk goes on from this slot of the resource.
    To(String, i32),
    End,
}

/// Returns up to `most` leases of sessions, after the first `skip`: their seats and rows.
pub fn held_by(sessions: &[Uuid], most: usize, skip: usize) -> Vec<(Seat, LeaseRow)> {
    let (held, mut rows, mut passed) = (Held::open(), Vec::new(), 0);
    for session in sessions {
        if rows.len() == most {
            break;
        }
        held.each(*session, None, |resource, row| {
            passed += 1;
            if passed > skip {
                rows.push(((resource, row.slot), row));
            }
            (rows.len() == most).then_some(())
        });
    }
    rows
}

/// Returns up to `most` rows of free slots of a declared resource, and whether these are all. Old index entries count
/// towards `most`. Returns none if the index does not exist, as before 0.3.0.
pub fn free_rows(resource: &str, most: usize) -> (Vec<LeaseRow>, bool) {
    let (index, mut rows) = (c"_leases_free", Vec::new());
    if catalog::relation(index) == Oid::INVALID {
        return (rows, false);
    }
    let (table, key) = (Table::open(c"_leases", index), [Key::Text(resource)]);
    let mut walk = table.walk_versions(Sight::Latest, &key).backward();
    for _ in 0..most {
        match walk.step() {
            Stand::Row(_) => rows.push(LeaseRow::read(&table.row())),
            Stand::Stale => (),
            Stand::End => return (rows, true),
        }
    }
    (rows, false)
}

/// Returns whether a session holds a slot of a resource, or another transaction may be giving it one or taking one
/// away.
pub fn may_have_any(resource: &str, session: Uuid) -> bool {
    let held = Held::open();
    [Sight::Dirty, Sight::Latest]
        .into_iter()
        .any(|sight| held.each_of(sight, session, resource, 0, &mut |_, _| Some(())).is_some())
}

/// Returns whether a session holds a slot of a resource, even if another transaction is taking it away or giving it. Of
/// a slot in flight whose receiver is unknown, `is_given` tells whether it goes to this session.
pub fn has_or_had_any(resource: &str, session: Uuid, is_given: impl Fn() -> bool) -> bool {
    let held = Held::open();
    let concerns = |probe| match probe {
        Probe::Row(row) | Probe::InFlight(Some(row)) if row.session == Some(session) => true,
        Probe::InFlight(_) => is_given(),
        _ => false,
    };
    let mut visit = |_: &str, probe| concerns(probe).then_some(());
    [Sight::Dirty, Sight::Latest]
        .into_iter()
        .any(|sight| held.each_of(sight, session, resource, 0, &mut visit).is_some())
}

/// Returns the rows of the leases that a session holds of one resource.
pub fn of_session(resource: &str, session: Uuid) -> Vec<LeaseRow> {
    some_of_session(resource, session, usize::MAX)
}

/// Returns up to `most` rows of the leases that a session holds of one resource.
pub fn some_of_session(resource: &str, session: Uuid, most: usize) -> Vec<LeaseRow> {
    let mut found = Vec::new();
    Held::open().each_of(Sight::Latest, session, resource, 0, &mut |_, probe| {
        found.extend(match probe {
            Probe::Row(row) => Some(row),
            _ => None,
        });
        (found.len() >= most).then_some(())
    });
    found
}
