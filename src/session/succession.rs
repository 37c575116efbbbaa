//! Successions: which session inherits from a session that was taken over: what that one leaves behind, and what it
//! keeps in grace. Take-over itself is in [`crate::ending::takeover`].

use super::row::{SessionRow, row};
use crate::call::Call;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, page_of};
use pgrx::Uuid;
use pgrx::pg_sys::UUIDARRAYOID;
use std::collections::{HashMap, HashSet};

static FORGET: Statement = Statement::tidies(include_str!("../../sql/query/takeover/forget.sql"), &[UUIDARRAYOID]);

/// Opens the index of private sessions by the session that may take back their lease in grace.
pub fn graces() -> Table {
    Table::open(c"_sessions", c"_sessions_grace_of")
}

/// Returns whether a session that has a successor still has a lease in grace that has not passed to the successor.
pub fn leaves_grace(session: Uuid) -> bool {
    is_in_grace_of(session) && successor(session).is_some()
}

/// Returns whether a session has a lease in grace, or a predecessor that still has something.
pub fn has_grace(session: Uuid) -> bool {
    let of_former = Table::open(c"_successions", c"_successions_successor");
    is_in_grace_of(session) || of_former.has_entry(&[Key::Uuid(session)])
}

fn is_in_grace_of(session: Uuid) -> bool {
    !page_of(&graces(), &[session], 1, 0, |row| Some(row.required::<Uuid>(1))).is_empty()
}

/// Returns the successor of a session that was taken over, living or not. The succession is known as long as the
/// taken-over session still has something.
pub fn successor(session: Uuid) -> Option<Uuid> {
    successor_in(&table(), session)
}

pub fn table() -> Table {
    Table::open(c"_successions", c"_successions_pkey")
}

pub fn successor_in(table: &Table, session: Uuid) -> Option<Uuid> {
    table.scan(Sight::Latest, &[Key::Uuid(session)], |row, _| Some(row.required(2)))
}

/// Returns the row of a dead session's successor, if the successor lives.
pub fn living_successor(call: &Call, session: Uuid) -> Option<SessionRow> {
    row(successor(session)?).filter(|row| call.standing_of(row).is_some())
}

/// Returns the heir of a dead session: its successor, if that lives and does not drain. A session that drains takes
/// nothing new.
pub fn heir(call: &Call, session: Uuid) -> Option<Uuid> {
    living_successor(call, session).filter(|row| !row.draining).map(|row| row.session)
}

/// Returns the sessions that a session took over and that still have something.
pub fn former(session: Uuid) -> Vec<Uuid> {
    let of_former = Table::open(c"_successions", c"_successions_successor");
    page_of(&of_former, &[session], usize::MAX, 0, |row| Some(row.required(1)))
}

/// Returns whether a session has an heir, or may get a successor from a transaction that is open. If so, no session
/// behind it in line is granted to: the successor may have taken over its place, and not be visible there yet.
pub fn has_successor(call: &Call, session: Uuid) -> bool {
    let table = table();
    let being_written = || table.scan(Sight::Dirty, &[Key::Uuid(session)], |_, flight| Some(flight != Flight::None));
    // Usually no session has been taken over. The order of the two checks matters: one of them sees what commits
    // meanwhile.
    table.has_entry(&[]) && (being_written() == Some(true) || heir(call, session).is_some())
}

/// Returns the heirs of the dead sessions that have one, by session (see [`heir`]).
pub fn heirs(call: &Call, dead: impl Iterator<Item = Uuid>) -> HashMap<Uuid, Uuid> {
    let mut dead = dead.peekable();
    // Usually no session is dead, and none has been taken over.
    if dead.peek().is_none() || !table().has_entry(&[]) {
        return HashMap::new();
    }
    // One dead session may have held many leases.
    let dead: HashSet<Uuid> = dead.collect();
    dead.into_iter().filter_map(|dead| Some((dead, heir(call, dead)?))).collect()
}

/// Deletes the successions of sessions that no longer have anything. Skips a row that another transaction is changing;
/// such a row no longer matters.
pub fn forget(call: &Call, sessions: &[Uuid]) {
    let table = table();
    let mine = |session: &Uuid| {
        let row = table.scan(Sight::Latest, &[Key::Uuid(*session)], |row, _| Some(row.tid()));
        row.is_some_and(|tid| table.lock(tid, false) == Locked::Mine)
    };
    let forgotten: Vec<Uuid> = sessions.iter().copied().filter(mine).collect();
    let deleted = forgotten.iter().map(|session| table.delete_rows(&[Key::Uuid(*session)])).sum();
    call.written(deleted, &FORGET, vec![Value::Uuids(&forgotten)]);
}
