//! Places by session. Former places of a session stay in the index while an old snapshot is open. A walk skips those
//! below the floor of their line (see [`crate::session::floor`]).

use crate::base::limits;
use crate::call::Call;
use crate::lease::row::Leases;
use crate::pg::table::{Key, Table, Tuple};
use crate::pg::text::Text;
use crate::session::floor::BySession;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashMap;
use std::ffi::CStr;

pub const TABLE: &CStr = c"_waiters";
/// The columns of the table: the place, the resource, and the session that waits.
pub const PLACE: usize = 1;
pub const RESOURCE: usize = 2;
pub const SESSION: usize = 3;

/// Returns the table of places.
pub fn table() -> Table {
    Table::open(TABLE, c"_waiters_pkey")
}

impl Call {
    /// Returns the table of places by resource. A call opens it once.
    pub fn waiters(&self) -> &Table {
        self.tables.waiters.get_or_init(table)
    }
}

type Places = HashMap<(String, Uuid), Vec<ItemPointerData>>;

fn by_session() -> BySession {
    BySession::open(TABLE, c"_waiters_session", RESOURCE, PLACE)
}

/// Returns the places of sessions in the lines of resources, pair by pair. Looks them up by key, not by a statement:
/// the plan of a statement may be older than the first waiter, and would then read all places.
pub fn places(resources: &[&str], sessions: &[Uuid]) -> Places {
    let (table, mut places) = (by_session(), Places::new());
    for (resource, session) in resources.iter().zip(sessions) {
        table.each_of(*session, resource, i64::MIN, &mut |row| {
            places.entry(((*resource).to_owned(), *session)).or_default().push(row.tid());
            None::<()>
        });
    }
    places
}

/// Returns whether a session may have a place. A former place counts until its index entry is removed.
pub fn may_wait(session: Uuid) -> bool {
    by_session().table.has_entry(&[Key::Uuid(session)])
}

/// Returns whether a session has as many places as it may have.
pub fn is_full(session: Uuid) -> bool {
    let (table, mut count) = (by_session(), 0);
    let mut enough = |_: &Tuple| {
        count += 1;
        (count == limits::MAX_PLACES).then_some(())
    };
    table.table.entries(&[Key::Uuid(session)], limits::MAX_PLACES) == limits::MAX_PLACES
        && table.each(session, &mut enough).is_some()
}

/// Returns up to `most` places of sessions, after the first `skip`, with their resources.
pub fn places_of(sessions: &[Uuid], most: usize, skip: usize) -> Vec<(String, ItemPointerData)> {
    let (table, mut found, mut passed) = (by_session(), Vec::new(), 0);
    for session in sessions {
        if found.len() == most {
            break;
        }
        table.each(*session, &mut |row| {
            passed += 1;
            if passed > skip {
                found.push((row.required::<Text>(RESOURCE).0, row.tid()));
            }
            (found.len() == most).then_some(())
        });
    }
    found
}

/// Returns whether a session stays in line, or is granted the resource, however the open transactions end. A place that
/// one of them gives up counts only if that transaction grants the resource to the session.
pub fn stays_in_line(resource: &str, session: Uuid) -> bool {
    let mut has_any = false;
    let mut stays = |row: &Tuple| {
        has_any = true;
        (!row.is_being_deleted()).then_some(())
    };
    by_session().each_of(session, resource, i64::MIN, &mut stays).is_some()
        || has_any && Leases::open().slots(resource).1.contains(&session)
}

pub fn has_place(resource: &str, session: Uuid) -> bool {
    !places(&[resource], &[session]).is_empty()
}
