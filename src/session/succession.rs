//! Successions: which session inherits what is left of one that was taken over, and what that keeps in grace. Take-over
//! itself is in [`crate::ending::takeover`].

use super::row::{SessionRow, row};
use crate::call::Call;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, page_of};
use pgrx::Uuid;
use pgrx::pg_sys::UUIDARRAYOID;
use std::collections::{HashMap, HashSet};

static FORGET: Statement = Statement::tidies(include_str!("../../sql/query/takeover/forget.sql"), &[UUIDARRAYOID]);

/// Opens the index of sessions by the session that they may give a lease in grace back to.
pub fn graces() -> Table {
    Table::open(c"_sessions", c"_sessions_grace_of")
}

/// Returns whether anything is in grace of a session that has a successor and is not the successor's yet.
pub fn leaves_grace(session: Uuid) -> bool {
    is_in_grace_of(session) && successor(session).is_some()
}

/// Returns whether a session may acquire any lease that is in grace, or has a predecessor with something left.
pub fn has_grace(session: Uuid) -> bool {
    let of_former = Table::open(c"_successions", c"_successions_successor");
    is_in_grace_of(session) || of_former.has_entry(&[Key::Uuid(session)])
}

fn is_in_grace_of(session: Uuid) -> bool {
    !page_of(&graces(), &[session], 1, 0, |row| Some(row.required::<Uuid>(1))).is_empty()
}

/// Returns the successor of a session that was taken over, whatever has become of it, for as long as anything of that
/// session is left.
pub fn successor(session: Uuid) -> Option<Uuid> {
    successor_in(&table(), session)
}

pub fn table() -> Table {
    Table::open(c"_successions", c"_successions_pkey")
}

pub fn successor_in(table: &Table, session: Uuid) -> Option<Uuid> {
    table.scan(Sight::Latest, &[Key::Uuid(session)], |row, _| Some(row.required(2)))
}

/// Returns the row of the living successor of a dead session.
pub fn living_successor(call: &Call, session: Uuid) -> Option<SessionRow> {
    row(successor(session)?).filter(|row| call.standing_of(row).is_some())
}

/// Returns the living successor of a dead session, which inherits what is left of it. One that drains takes nothing
/// new.
pub fn heir(call: &Call, session: Uuid) -> Option<Uuid> {
    living_successor(call, session).filter(|row| !row.draining).map(|row| row.session)
}

/// Returns the sessions that a session took over, for as long as anything of them is left.
pub fn former(session: Uuid) -> Vec<Uuid> {
    let of_former = Table::open(c"_successions", c"_successions_successor");
    page_of(&of_former, &[session], usize::MAX, 0, |row| Some(row.required(1)))
}

/// Returns whether a session has a living successor, or gets one if a transaction commits that is open. So what it
/// waits for is not given to those behind it: the successor may have its place, and not be seen there yet.
pub fn has_successor(call: &Call, session: Uuid) -> bool {
    let table = table();
    let being_written = || table.scan(Sight::Dirty, &[Key::Uuid(session)], |_, flight| Some(flight != Flight::None));
    // Mostly no session has been taken over. In this order: what is committed meanwhile is seen in one of both.
    table.has_entry(&[]) && (being_written() == Some(true) || heir(call, session).is_some())
}

/// Returns the living successors of those among some dead sessions that have one, as [`heir`] finds them.
pub fn heirs(call: &Call, dead: impl Iterator<Item = Uuid>) -> HashMap<Uuid, Uuid> {
    let mut dead = dead.peekable();
    // Mostly no session is dead, and none has been taken over.
    if dead.peek().is_none() || !table().has_entry(&[]) {
        return HashMap::new();
    }
    // One dead session may have had many.
    let dead: HashSet<Uuid> = dead.collect();
    dead.into_iter().filter_map(|dead| Some((dead, heir(call, dead)?))).collect()
}

/// Forgets the successors of sessions that have nothing left. A row that another transaction is just changing stays: it
/// says nothing any more.
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
