//! Sessions: one incarnation of a consumer, with one heartbeat for everything that it holds.
//!
//! A session is a row (who, as which role, with which TTL) and a slot in shared memory (until when). Opening writes the
//! row and enters the slot; a heartbeat touches the slot alone. After a restart the slot is made again from the row by
//! whoever needs it first, the worker at the latest: the session is then alive until `t0 + ttl`, as
//! [`crate::shmem::slots`] says; but for one that had expired, and from which somebody has taken something ([`death`]).
//! Where all slots are taken it lives until then, and no longer ([`crate::shmem::stand_in`]).
//!
//! A session ends by its deadline, or early by close. Both make the slot dead, and dead for good; an early end becomes
//! so with the commit of its transaction (see [`crate::seam`]). What rows are left of it is taken away by
//! [`crate::ending::sweep`].

pub mod death;
pub mod ending;
pub mod floor;
pub mod holders;
pub mod named;
pub mod succession;
mod touch;

pub use touch::{Touch, touch, touch_holder};

use crate::base::error::{Error, Result};
use crate::base::settings;
use crate::call::Call;
use crate::pg::catalog::{self, Home};
use crate::pg::guard::Guard;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Locked, Sight, Table, Tuple};
use crate::pg::text::{Text, role_name};
use crate::pg::{clock, random, role, transaction};
use crate::shmem::Shared;
use crate::shmem::databases::{Counter, RESCAN};
use crate::shmem::map::Opening;
use crate::shmem::slots::SlotRef;
use crate::shmem::standing::Standing;
use crate::shmem::word::State;
use named::Name;
use pgrx::Uuid;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::{self, BOOLOID, INT4OID, INT8OID, OIDOID, TEXTOID, TIMESTAMPTZOID, UUIDARRAYOID, UUIDOID};
use std::sync::atomic::Ordering;

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
    /// Who may take back the lease that it keeps for a while.
    pub grace_of: Option<Uuid>,
    /// Whose guard the fenced transactions of that lease have.
    pub fencer: Option<Uuid>,
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

/// The row of a session, if it has one that is committed.
fn read(table: &Table, session: &Uuid) -> Option<SessionRow> {
    table.scan(Sight::Latest, &[Key::Uuid(*session)], |row, _| {
        Some(SessionRow {
            session: *session,
            consumer: row.get::<Text>(2).map(|text| text.0).unwrap_or_default(),
            role: row.get::<pg_sys::Oid>(3).map_or(0, |role| role.to_u32()),
            ttl_ms: row.get(4).unwrap_or(0),
            boot_id: row.get(5).unwrap_or(0),
            draining: row.get(7).unwrap_or(false),
            private: row.get(8).unwrap_or(false),
            request: row.get(9),
            grace_of: row.get(10),
            fencer: row.get(11),
            tid: row.tid(),
        })
    })
}

pub fn table() -> Table {
    Table::open(c"_sessions", c"_sessions_pkey")
}

/// The rows of sessions; those that have none are left out.
pub fn rows(sessions: &[Uuid]) -> Vec<SessionRow> {
    let table = table();
    sessions.iter().filter_map(|session| read(&table, session)).collect()
}

pub fn row(session: Uuid) -> Option<SessionRow> {
    read(&table(), &session)
}

/// Deletes the rows of sessions, and says how many there were.
pub fn delete(call: &Call, sessions: &[Uuid]) -> u64 {
    let table = table();
    let deleted = sessions.iter().map(|session| table.delete_rows(&[Key::Uuid(*session)])).sum();
    call.written(deleted, &DELETE, vec![Value::Uuids(sessions)])
}

/// Has a session drain.
pub fn drain(call: &Call, session: Uuid) {
    let change = |row: &Tuple| (row.get(7) == Some(false)).then(|| vec![(7, Some(true.into()))]);
    let drained = table().update_rows(&[Key::Uuid(session)], change);
    call.written(drained, &DRAIN, vec![Value::Uuid(session)]);
}

/// All sessions that have a row.
pub fn all() -> Vec<Uuid> {
    let mut sessions = Vec::new();
    table().scan(Sight::Latest, &[], |row, _| {
        sessions.extend(row.get::<Uuid>(1));
        None::<()>
    });
    sessions
}

/// What stands for a session that has a row, by its slot, or by that row where it has none; judges nobody.
pub fn standing(shared: &'static Shared, home: Home, session: Uuid, boot_id: i64, ttl_ms: i32) -> Standing {
    let mut standing = shared.standing(home, session, boot_id, ttl_ms);
    if standing.alive() && shared.find(home, session).is_none() {
        if death::is_recorded(session) {
            return Standing::dead();
        }
        if ending::is_ending(session) {
            standing.state = State::Frozen;
        }
    }
    standing
}

impl Call {
    /// The slot of a session that has a row, made again if the server has been restarted since; `None` for one that is
    /// dead for good. An error where all slots are taken: the session lives by its row.
    pub fn slot_of(&self, row: &SessionRow) -> Result<Option<SlotRef>> {
        if let Some(at) = self.shared.find(self.home, row.session) {
            return Ok(Some(at));
        }
        let Some(opening) = self.opening_of(row) else { return Ok(None) };
        let (deadline, frozen) = (opening.deadline, opening.frozen);
        let at = self.shared.enter(self.home, opening)?;
        if row.fencer.is_some() {
            self.shared.cap(at, deadline);
        }
        if self.database.without_slot.load(Ordering::Acquire) > 0 {
            // It was passed over in line while it had no slot.
            self.database.flag(RESCAN);
            self.shared.wake(self.database);
        }
        // The end of a close that was prepared before the restart, since the row was looked at, nobody else would find.
        if self::row(row.session).is_none() {
            self.shared.end(at, true);
        } else if frozen {
            ending::thaw(self.shared, at);
        } else if ending::is_ending(row.session) {
            // By a stand-in, and it may have come to its commit before there was a slot to freeze.
            self.shared.freeze(at);
        }
        Ok(Some(at))
    }

    /// The same for a call that names the session: a stand-in where all slots are taken.
    fn at_of(&self, row: &SessionRow) -> Option<SlotRef> {
        if let Ok(at) = self.slot_of(row) {
            return at;
        }
        let at = self.shared.stand_in(self.home, &self.opening_of(row)?);
        self::row(row.session).map(|_| at)
    }

    /// What the slot of a session is made with that has a row and none; `None` for one that is dead for good.
    fn opening_of(&self, row: &SessionRow) -> Option<Opening> {
        let by_row = self.shared.standing(self.home, row.session, row.boot_id, row.ttl_ms);
        if !by_row.alive() {
            return None;
        }
        // It had expired when a transaction took something from it that was prepared before the restart.
        let deadline = if Guard::Taken(row.session).is_held_jointly() { by_row.now } else { by_row.until };
        // After that: PostgreSQL lets go of a guard once all can see what its transaction has written.
        if death::is_recorded(row.session) {
            return None;
        }
        // And what such a one has granted to it is committed at a time that nobody can tell, or has been since the
        // restart.
        let unproven = self.shared.unproven_when_found(Guard::Promised(row.session).is_held_jointly());
        let (session, role, ttl_ms, private) = (row.session, row.role, row.ttl_ms, row.private);
        let frozen = ending::is_ending(session);
        Some(Opening { session, role, ttl_ms, private, deadline, opened_by: 0, unproven, frozen, most: None })
    }

    /// What stands for a session that has a row. `None`: it is dead.
    pub fn standing_of(&self, row: &SessionRow) -> Option<Standing> {
        // Whoever judges a session of before a restart makes its slot, so that all judge alike from then on.
        let standing = match self.slot_of(row) {
            Ok(at) => at.and_then(|at| self.shared.look(at)),
            Err(_) => Some(standing(self.shared, self.home, row.session, row.boot_id, row.ttl_ms)),
        };
        standing.filter(Standing::alive)
    }

    /// Whether a waiter may be granted to: one whose end is being committed has leases still, but is not to get more;
    /// nor is one without a slot.
    pub fn is_eligible(&self, row: &SessionRow) -> bool {
        let at = if row.draining { None } else { self.slot_of(row).ok().flatten() };
        let Some(at) = at else { return false };
        // An end that was prepared may have been rolled back, which tells nobody.
        ending::thaw(self.shared, at);
        self.shared.look(at).is_some_and(|standing| standing.state == State::Alive)
    }

    /// The slot of a session that lives, or its stand-in.
    pub fn living(&self, session: Uuid) -> Result<Option<SlotRef>> {
        let at = match self.shared.find(self.home, session) {
            None => row(session).and_then(|row| self.at_of(&row)),
            at => at,
        };
        Ok(at.filter(|at| self.shared.look(*at).is_some_and(|standing| standing.alive())))
    }

    /// The guard of a session's fenced transactions. A lease goes into grace and back while such a one is open, so what
    /// keeps it in grace has the guard of the session that let go of it.
    pub fn fencer(&self, at: SlotRef) -> Guard {
        let of = if self.shared.is_private(at) { row(at.session()).and_then(|row| row.fencer) } else { None };
        Guard::Fencer(of.unwrap_or(at.session()))
    }

    /// The slot of a session that the caller has named and may use: by its slot if it has one, by its row otherwise.
    /// `None` for a private one.
    pub fn session(&self, session: Uuid) -> Result<Option<SlotRef>> {
        if is_private(self.shared, self.home, session) { Ok(None) } else { self.holder(session, None) }
    }

    /// The slot of a session that the caller may use, private or not. `resource`: what it has, where the caller has
    /// named that and not the session.
    pub fn holder(&self, session: Uuid, resource: Option<&str>) -> Result<Option<SlotRef>> {
        if let Some((at, role)) = find(self.shared, self.home, session) {
            authorize(self.caller, role, resource)?;
            return Ok(Some(at));
        }
        let Some(row) = row(session) else {
            return Ok(None);
        };
        authorize(self.caller, row.role, resource)?;
        Ok(self.at_of(&row))
    }
}

/// The slot of a session, and whose that is.
fn find(shared: &Shared, home: Home, session: Uuid) -> Option<(SlotRef, u32)> {
    let at = shared.find(home, session)?;
    Some((at, shared.role(at)?))
}

/// A session is used by the role that opened it, or by a member of that role, whoever knows its uuid. `resource`: what
/// it has, where the caller has named that and not the session.
pub fn authorize(caller: pg_sys::Oid, role: u32, resource: Option<&str>) -> Result<()> {
    let role = pg_sys::Oid::from(role);
    if caller == role || role::acts_as(caller, role) {
        return Ok(());
    }
    Err(Error::Foreign { owner: role_name(role), resource: resource.map(str::to_owned) }.into())
}

/// Whether a session exists for one lease, which is used by its name and fence. To all verbs that take a session but
/// session_close it is unknown: it could come to hold other things, and they would end with that one lease.
fn is_private(shared: &'static Shared, home: Home, session: Uuid) -> bool {
    match shared.find(home, session) {
        Some(at) => shared.is_private(at),
        None => row(session).is_some_and(|row| row.private),
    }
}

/// When a span of shared memory's clock ends, for people.
pub fn wall_clock(left: u64) -> Option<TimestampWithTimeZone> {
    const SINCE_2000: u64 = 946_684_800_000_000;
    i64::try_from(clock::wall().saturating_sub(SINCE_2000) + left).ok()?.try_into().ok()
}

/// Opens a session: its row, its slot, and the note that an abort is to undo it.
pub fn open(call: &Call, new: New) -> Result<SlotRef> {
    let New { consumer, role, ttl_ms, private, request, grace_of, fencer, attached } = new;
    let session = random_uuid();
    // A statement would wait for it.
    catalog::lock(c"_sessions");
    let insert = |opened_at| {
        let mut values = vec![Value::Uuid(session), Value::Text(consumer), Value::Oid(role), Value::Int(ttl_ms)];
        values.extend([Value::Long(call.shared.boot_id()), Value::Long(opened_at), Value::Bool(private)]);
        values.extend([request, grace_of, fencer].map(Value::MaybeUuid));
        call.db().execute(&INSERT, values);
    };
    if private {
        insert(clock::timestamp())
    } else {
        Name::of(consumer, role.into()).open(insert)
    }
    let deadline = clock::now() + u64::from(ttl_ms.cast_unsigned()) * 1_000;
    let opened_by = transaction::id_if_any();
    let (unproven, frozen, most) = (0, false, settings::max_sessions_per_role());
    let opening = Opening { session, role, ttl_ms, private, deadline, opened_by, unproven, frozen, most };
    let at = call.shared.enter(call.home, opening)?;
    call.seam().opened(at, attached);
    call.database.add(Counter::SessionsOpened, 1);
    Ok(at)
}

/// A version 4 uuid from a strong source: it is the handle of the session, and nobody may guess it.
fn random_uuid() -> Uuid {
    let mut bytes: [u8; 16] = random::strong();
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}

/// Locks the rows of sessions that nobody else has locked. Gives these sessions and those without a row; and whether
/// any is missing.
pub fn lock_rows(sessions: Vec<Uuid>) -> (Vec<Uuid>, bool) {
    let table = table();
    let count = sessions.len();
    let mine = |session: &Uuid| read(&table, session).is_none_or(|row| table.lock(row.tid, false) == Locked::Mine);
    let locked: Vec<Uuid> = sessions.into_iter().filter(mine).collect();
    let missing = locked.len() < count;
    (locked, missing)
}

/// Locks the row of a session, waiting for whoever is changing it; `None` when there is none any more.
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
