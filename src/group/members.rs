//! The members of groups. A membership is a row. A session has at most one in a group, since [`claim`] keeps other
//! transactions from making a second.
//!
//! Sessions come and go, and while an old snapshot is open the rows of former members stay in the index. So the members
//! of a group are a line with a floor (see [`crate::session::floor`]), in the order of their places. A rebalance that
//! meets many rows of former members gives the present members new places behind them.

use crate::call::Call;
use crate::keys;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Change, Flight, Key, Locked, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use crate::session::floor::{self, BySession};
use crate::session::succession;
use pgrx::Uuid;
use pgrx::pg_sys::{INT8OID, ItemPointerData, TEXTOID, UUIDARRAYOID, UUIDOID};
use std::ffi::CStr;

static JOIN: Statement =
    Statement::writes(include_str!("../../sql/query/group/join.sql"), &[TEXTOID, UUIDOID, INT8OID, INT8OID]);
static COUNT: Statement =
    Statement::writes(include_str!("../../sql/query/group/count.sql"), &[TEXTOID, UUIDARRAYOID, TEXTOID]);
static REMOVE: Statement =
    Statement::writes(include_str!("../../sql/query/group/remove.sql"), &[TEXTOID, UUIDARRAYOID]);
static INHERIT: Statement =
    Statement::writes(include_str!("../../sql/query/group/inherit.sql"), &[TEXTOID, UUIDOID, UUIDOID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/group/drop_members.sql"), &[TEXTOID]);

const TABLE: &CStr = c"_members";
const GROUP: usize = 1;
pub const SESSION: usize = 2;
pub const JOINED: usize = 4;
pub const BOOT_ID: usize = 5;
pub const COUNTED: usize = 6;
const PLACE: usize = 7;

fn table() -> Table {
    Table::open(TABLE, c"_members_pkey")
}

fn by_session() -> BySession {
    BySession::open(TABLE, c"_members_session", GROUP, PLACE)
}

/// Returns whether any group may have members.
fn may_be() -> bool {
    table().has_entry(&[])
}

/// Shows the members of a group that are committed, or were made by this transaction. Returns how often it stepped over
/// rows of former members.
pub fn each(group: &str, mut visit: impl FnMut(&Tuple)) -> usize {
    let mut stale = 0;
    if let Some(floor) = walk(group, None, &mut visit, &mut stale) {
        stale = 0;
        walk(group, Some(floor), &mut visit, &mut stale);
    }
    stale
}

/// Walks through the members, from a floor on if there is one. Without one it looks for a floor after some stale rows.
/// If that floor is further on, the walk ends and returns the floor. Before 0.3.0 members have no places.
fn walk(group: &str, floor: Option<i64>, visit: &mut impl FnMut(&Tuple), stale: &mut usize) -> Option<i64> {
    let (table, mut may_ask) = (table(), floor.is_none());
    let key = [Key::Text(group), Key::From(floor.unwrap_or(0))];
    let mut walk = table.walk_versions(Sight::Latest, if may_ask { &key[..1] } else { &key });
    loop {
        match walk.step() {
            Stand::Row(_) => visit(&table.row()),
            Stand::Stale => {
                let Some(place) = table.row().get::<i64>(PLACE) else { continue };
                *stale += 1;
                if may_ask {
                    may_ask = false;
                    // This table is being walked, so the floor needs another one.
                    let key = |from| vec![Key::Text(group), Key::From(from)];
                    let floor = floor::raise(floor::lane(TABLE, group), &self::table(), PLACE, key);
                    if floor > place {
                        return Some(floor);
                    }
                }
            }
            Stand::End => return None,
        }
    }
}

/// Returns the sessions in a group. Sessions that open transactions add or remove are included; the second value says
/// whether there are any.
pub fn sessions(group: &str) -> (Vec<Uuid>, bool) {
    let (mut sessions, mut in_flight) = (Vec::new(), false);
    table().scan(Sight::Dirty, &[Key::Text(group)], |row, flight| {
        in_flight |= flight != Flight::None;
        sessions.push(row.required(SESSION));
        None::<()>
    });
    (sessions, in_flight)
}

/// Returns the groups that sessions are members of in their own names, in order.
pub fn groups_of(sessions: &[Uuid]) -> Vec<String> {
    // In most databases no session is a member of any group.
    if !may_be() {
        return Vec::new();
    }
    let (table, mut groups) = (by_session(), Vec::new());
    for session in sessions {
        table.each(*session, &mut |row| {
            groups.push(row.required::<Text>(GROUP).0);
            None::<()>
        });
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Asks the worker to judge the groups of sessions.
pub fn note_groups(call: &Call, sessions: &[Uuid]) {
    for group in groups_of(sessions) {
        call.seam().judge(&group);
    }
}

/// Keeps other transactions from making the session a member, to the end of this one: two such transactions would wait
/// for each other's row. Returns false if another transaction has claimed the membership.
pub fn claim(group: &str, session: Uuid) -> bool {
    Guard::Seat(session, keys::fnv1a(group)).try_lock(Mode::Exclusive)
}

/// Returns the address (ctid) of a member's row, not counting rows that other transactions have not committed.
fn row_of(group: &str, session: Uuid) -> Option<ItemPointerData> {
    by_session()
        .each_of(session, group, i64::MIN, &mut |row| (*row.required::<Text>(GROUP) == *group).then(|| row.tid()))
}

/// Returns whether a session is a member, in its own name or in that of a session that it took over. Uncommitted rows
/// of other transactions do not count.
pub fn is_member(group: &str, session: Uuid) -> bool {
    has_row(group, session) || succession::former(session).into_iter().any(|former| has_row(group, former))
}

/// Returns whether a session is a member in its own name.
pub fn has_row(group: &str, session: Uuid) -> bool {
    row_of(group, session).is_some()
}

/// Locks the rows of members that no other transaction has locked. Returns these members.
pub fn lock(group: &str, sessions: &[Uuid]) -> Vec<Uuid> {
    let table = table();
    let mine = |session: &Uuid| row_of(group, *session).is_some_and(|tid| table.lock(tid, false) == Locked::Mine);
    sessions.iter().copied().filter(mine).collect()
}

/// Makes a session a member. The caller has claimed the membership, and the session has none.
pub fn join(call: &Call, group: &str, session: Uuid) {
    let now = Value::Long(clock::now().cast_signed());
    let values = vec![Value::Text(group), Value::Uuid(session), now, Value::Long(call.shared.boot_id())];
    // The floor requires the stripe: once a place is in the index, all lower places must be in it.
    let stripe = Guard::Stripe(keys::stripe(group, 0));
    stripe.lock(Mode::Exclusive);
    call.db().execute(&JOIN, values);
    stripe.unlock(Mode::Exclusive);
}

/// Gives present members new places behind those of former members: a member of long standing would keep the floor low.
/// Leaves out members whose rows other transactions have locked. The caller has locked the group.
pub fn move_up(group: &str, sessions: &[Uuid]) {
    let mine = lock(group, sessions);
    let stripe = Guard::Stripe(keys::stripe(group, 0));
    stripe.lock(Mode::Exclusive);
    let next = || vec![(PLACE as i32, Some(spi::next(c"_members_place_seq").into()))];
    write(group, &mine, |table, _| table.update(&next()));
    stripe.unlock(Mode::Exclusive);
    spi::durably();
}

/// Writes how the targets take some members into account.
pub fn count(call: &Call, group: &str, sessions: &[Uuid], counted: &str) {
    let counts = || vec![(COUNTED as i32, Value::Text(counted).datum())];
    let values = vec![Value::Text(group), Value::Uuids(sessions), Value::Text(counted)];
    call.written(write(group, sessions, |table, _| table.update(&counts())), &COUNT, values);
}

/// Removes sessions from a group. Returns how many were members.
pub fn remove(call: &Call, group: &str, sessions: &[Uuid]) -> u64 {
    let removed = write(group, sessions, |table, tid| table.try_delete_at(tid) == Locked::Mine);
    call.written(removed, &REMOVE, vec![Value::Text(group), Value::Uuids(sessions)])
}

/// Gives the membership of a session to its successor, or deletes it if the successor has one. The caller has locked
/// the session's row.
pub fn inherit(call: &Call, group: &str, old: Uuid, new: Uuid) {
    let change: [Change; 1] = [(SESSION as i32, Value::Uuid(new).datum())];
    let passed_on = if has_row(group, new) {
        write(group, &[old], |table, tid| table.try_delete_at(tid) == Locked::Mine)
    } else {
        write(group, &[old], |table, _| table.update(&change))
    };
    call.written(passed_on, &INHERIT, vec![Value::Text(group), Value::Uuid(old), Value::Uuid(new)]);
}

/// Removes all members of a group.
pub fn drop_all(call: &Call, group: &str) {
    call.written(table().delete_rows(&[Key::Text(group)]), &DROP, vec![Value::Text(group)]);
}

/// Writes to the rows of members, and waits for transactions that have locked one. Returns how many it has written, or
/// `None` if a statement must do it.
fn write(group: &str, sessions: &[Uuid], write: impl Fn(&Table, ItemPointerData) -> bool) -> Option<u64> {
    let table = table();
    if !table.is_plain() {
        return None;
    }
    let mut written = 0;
    for session in sessions {
        while let Some(tid) = row_of(group, *session) {
            pgrx::check_for_interrupts!();
            if table.lock(tid, true) == Locked::Mine {
                written += u64::from(write(&table, tid));
                break;
            }
        }
    }
    Some(written)
}
