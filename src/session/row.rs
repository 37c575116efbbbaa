//! The rows of sessions: written when a session is opened, locked before it is changed, and deleted when it ends.

use super::named::Name;
use crate::call::Call;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{catalog, clock};
use pgrx::Uuid;
use pgrx::pg_sys::{self, BOOLOID, INT4OID, INT8OID, OIDOID, TEXTOID, TIMESTAMPTZOID, UUIDARRAYOID, UUIDOID};
use std::ffi::CStr;

static INSERT: Statement = Statement::writes(
    include_str!("../../sql/query/session/insert.sql"),
    &[UUIDOID, TEXTOID, OIDOID, INT4OID, INT8OID, TIMESTAMPTZOID, BOOLOID, UUIDOID, UUIDOID, UUIDOID],
);
static DELETE: Statement = Statement::writes(include_str!("../../sql/query/session/delete.sql"), &[UUIDARRAYOID]);
static DRAIN: Statement = Statement::writes(include_str!("../../sql/query/session/drain.sql"), &[UUIDOID]);

/// The row of a session.
#[derive(Clone, Debug)]
pub struct SessionRow {
    pub session: Uuid,
    pub consumer: String,
    pub role: u32,
    pub ttl_ms: i32,
    pub boot_id: i64,
    pub draining: bool,
    pub private: bool,
    pub request: Option<Uuid>,
    /// The session that may take back the lease that this private session keeps in grace.
    pub grace_of: Option<Uuid>,
    /// The session whose guard `Fencer` is held by the fenced transactions of that lease.
    pub fencer: Option<Uuid>,
    /// The transaction that opens the session; zero if it is committed, or is this one.
    pub opened_by: u32,
    tid: pg_sys::ItemPointerData,
}

/// What a session is opened with.
pub struct New<'a> {
    pub consumer: &'a str,
    pub role: u32,
    pub ttl_ms: i32,
    pub private: bool,
    pub request: Option<Uuid>,
    pub grace_of: Option<Uuid>,
    pub fencer: Option<Uuid>,
    pub attached: bool,
}

impl<'a> New<'a> {
    pub fn of(call: &Call, consumer: &'a str, ttl_ms: i32) -> New<'a> {
        let role = call.caller.to_u32();
        New { consumer, role, ttl_ms, private: false, request: None, grace_of: None, fencer: None, attached: false }
    }
}

/// Returns the committed row of a session, or the row that this transaction wrote.
fn read(table: &Table, session: &Uuid) -> Option<SessionRow> {
    table.scan(Sight::Latest, &[Key::Uuid(*session)], |row, _| Some(SessionRow::of(row)))
}

impl SessionRow {
    fn of(row: &Tuple) -> SessionRow {
        SessionRow {
            session: row.required(1),
            consumer: row.required::<Text>(2).0,
            role: row.required::<pg_sys::Oid>(3).to_u32(),
            ttl_ms: row.required(4),
            boot_id: row.required(5),
            draining: row.required(7),
            private: row.required(8),
            request: row.get(9),
            grace_of: row.get(10),
            fencer: row.get(11),
            opened_by: 0,
            tid: row.tid(),
        }
    }
}

pub fn table() -> Table {
    Table::open(c"_sessions", c"_sessions_pkey")
}

/// Returns the rows of sessions; a session without a row is left out.
pub fn rows(sessions: &[Uuid]) -> Vec<SessionRow> {
    let table = table();
    sessions.iter().filter_map(|session| read(&table, session)).collect()
}

pub fn row(session: Uuid) -> Option<SessionRow> {
    read(&table(), &session)
}

/// Returns the row of a session that is not private, even if another transaction opens the session. Usually such a
/// session has a slot, but not if the transaction was prepared before a restart.
pub(super) fn row_or_opening(session: Uuid) -> Option<SessionRow> {
    let table = table();
    let opening = |row: &Tuple, _| {
        let row = SessionRow { opened_by: row.made_by().into(), ..SessionRow::of(row) };
        (!row.private).then_some(row)
    };
    read(&table, &session).or_else(|| table.scan(Sight::Dirty, &[Key::Uuid(session)], opening))
}

/// Writes the row of a new session.
pub(super) fn insert(call: &Call, session: Uuid, new: &New) {
    // Waits for a locked table only for a bounded time; a statement would wait without a bound.
    catalog::lock(c"_sessions");
    let write = |opened_at| {
        let mut values = vec![Value::Uuid(session), Value::Text(new.consumer), Value::Oid(new.role)];
        values.extend([Value::Int(new.ttl_ms), Value::Long(call.shared.boot_id()), Value::Long(opened_at)]);
        values.push(Value::Bool(new.private));
        values.extend([new.request, new.grace_of, new.fencer].map(Value::MaybeUuid));
        call.db().execute(&INSERT, values);
    };
    if new.private { write(clock::timestamp()) } else { Name::of(new.consumer, new.role.into()).open(write) }
}

/// Deletes the rows of sessions and returns their number.
pub fn delete(call: &Call, sessions: &[Uuid]) -> u64 {
    let table = table();
    let deleted = sessions.iter().map(|session| table.delete_rows(&[Key::Uuid(*session)])).sum();
    call.written(deleted, &DELETE, vec![Value::Uuids(sessions)])
}

/// Marks the row of a session as draining.
pub fn drain(call: &Call, session: Uuid) {
    let change = |row: &Tuple| (!row.required::<bool>(7)).then(|| vec![(7, Some(true.into()))]);
    let drained = table().update_rows(&[Key::Uuid(session)], change);
    call.written(drained, &DRAIN, vec![Value::Uuid(session)]);
}

const REQUESTS: &CStr = c"_sessions_request";

/// Returns the sessions that were opened with a request; `None` if this version of the SQL has no index to find them.
pub fn of_request(request: Uuid) -> Option<Vec<Uuid>> {
    let (mut sessions, index) = (Vec::new(), catalog::relation(REQUESTS));
    if index == pg_sys::Oid::INVALID {
        return None;
    }
    Table::open(c"_sessions", REQUESTS).scan(Sight::Latest, &[Key::Uuid(request)], |row, _| {
        sessions.push(row.required(1));
        None::<()>
    });
    Some(sessions)
}

/// Returns all sessions that have a row.
pub fn all() -> Vec<Uuid> {
    let mut sessions = Vec::new();
    table().scan(Sight::Latest, &[], |row, _| {
        sessions.push(row.required(1));
        None::<()>
    });
    sessions
}

/// Locks the rows of sessions, without waiting for other transactions. Returns the sessions whose rows it has locked or
/// that have no row, and whether it left any session out.
pub fn lock_rows(sessions: Vec<Uuid>) -> (Vec<Uuid>, bool) {
    let table = table();
    let count = sessions.len();
    let mine = |session: &Uuid| read(&table, session).is_none_or(|row| table.lock(row.tid, false) == Locked::Mine);
    let locked: Vec<Uuid> = sessions.into_iter().filter(mine).collect();
    let missing = locked.len() < count;
    (locked, missing)
}

/// Locks the row of a session; waits for a transaction that is changing it. Returns `None` if the row is gone.
pub fn lock_row(session: Uuid) -> Option<SessionRow> {
    let table = table();
    loop {
        let row = read(&table, &session)?;
        if table.lock(row.tid, true) == Locked::Mine {
            return Some(row);
        }
        pgrx::check_for_interrupts!();
    }
}
