//! History: what became of leases, for people to read. A row is written in the transaction that makes the change, so
//! that both become visible together.
//!
//! If a session loses a lease without a release, the loss is recorded, and kept for `eskit_lease.history_retention`.
//! Losses are rare: the session expired, was taken over or did not release a revoked partition in time, or an
//! administrator took the lease. Ordinary grants and releases may come by thousands a second, and each record costs a
//! row. They are recorded only with `eskit_lease.history_grants`. The row of a lease itself tells its present holder,
//! and since when.
//!
//! A writer of history waits for no other transaction: the table has no unique key, and a writer does not read it.

use super::candidate::Candidate;
use super::row::{LeaseRow, Seat};
use crate::base::settings;
use crate::call::Call;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Sight, Stand, Table, Tuple};
use crate::pg::text::{Text, role_name};
use crate::pg::{catalog, clock};
use crate::session::{self, SessionRow, holders, succession};
use crate::shmem::databases::Kept;
use pgrx::Uuid;
use pgrx::pg_sys::{Datum, FLOAT8OID, INT4OID, INT8OID, Oid, TEXTOID, TIMESTAMPTZOID};
use std::collections::HashMap;

static INSERT: Statement = Statement::writes(
    include_str!("../../sql/query/history/insert.sql"),
    &[TEXTOID, TEXTOID, INT4OID, INT8OID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID],
);
/// For the objects of 0.2.0.
static INSERT_FORMER: Statement = Statement::writes(
    include_str!("../../sql/query/history/insert_former.sql"),
    &[TEXTOID, TEXTOID, INT4OID, INT8OID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID],
);
pub static RETIRE: Statement =
    Statement::tidies(include_str!("../../sql/query/history/retire.sql"), &[FLOAT8OID, INT8OID, TIMESTAMPTZOID]);
pub static OLDEST: Statement = Statement::reads(include_str!("../../sql/query/history/oldest.sql"), &[TIMESTAMPTZOID]);

mod column {
    pub const AT: usize = 1;
    pub const EVENT: usize = 2;
    pub const RESOURCE: usize = 3;
    pub const SLOT: usize = 4;
    pub const FENCE: usize = 5;
}

/// The bounds of a search for a forced release: the row versions that it passes, and the microseconds after the change
/// of the lease. A forced release records its event in the transaction that changes the lease.
const LOOKED_THROUGH: usize = 1_000;
const MOMENT: i64 = 10_000_000;

/// The number of columns of the table; the table of 0.2.0 has no `ended_at`.
const COLUMNS: usize = 11;

/// Returns whether the table exists; version 0.1.0 had none.
pub fn is_there() -> bool {
    catalog::relation(c"_history") != Oid::INVALID
}

fn has_losses() -> bool {
    settings::HISTORY_RETENTION.get() != 0 && is_there()
}

fn has_grants() -> bool {
    settings::HISTORY_GRANTS.get() && has_losses()
}

/// How a lease was granted or lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Granted,
    Released,
    Expired,
    TakenOver,
    Revoked,
    Forced,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Granted => "granted",
            Event::Released => "released",
            Event::Expired => "expired",
            Event::TakenOver => "taken_over",
            Event::Revoked => "revoked",
            Event::Forced => "forced",
        }
    }

    fn is_ordinary(self) -> bool {
        matches!(self, Event::Granted | Event::Released)
    }
}

struct Entry<'a> {
    event: Event,
    resource: &'a str,
    slot: i32,
    fence: i64,
    /// For a grant, the consumer that got the lease; for any other event, the consumer that had it.
    consumer: Option<String>,
    /// The consumer that got the lease in the same step, and the new fence.
    next: Option<(String, i64)>,
    /// The administrator and the reason given.
    forced: Option<(String, &'a str)>,
    /// When the consumer's session ended, if it is known to have ended before this step.
    ended_at: Option<i64>,
}

impl Entry<'_> {
    fn new(event: Event, resource: &str, slot: i32, fence: i64, consumer: Option<String>) -> Entry<'_> {
        Entry { event, resource, slot, fence, consumer, next: None, forced: None, ended_at: None }
    }

    /// Returns when the consumer's hold ended; `None` for a grant.
    fn end(&self, now: i64) -> Option<i64> {
        (self.event != Event::Granted).then(|| self.ended_at.map_or(now, |ended_at| ended_at.min(now)))
    }

    /// Returns the values of all columns except the first, which is the time. `end`: the value of the last column, if
    /// the table has that column.
    fn values(&self, end: Option<Value<'static>>) -> Vec<Value<'_>> {
        let mut values = vec![
            Value::Text(self.event.name()),
            Value::Text(self.resource),
            Value::Int(self.slot),
            Value::Long(self.fence),
            Value::MaybeText(self.consumer.as_deref()),
            Value::MaybeText(self.next.as_ref().map(|(consumer, _)| consumer.as_str())),
            self.next.as_ref().map_or(Value::Null, |(_, fence)| Value::Long(*fence)),
            Value::MaybeText(self.forced.as_ref().map(|(by, _)| by.as_str())),
            Value::MaybeText(self.forced.as_ref().map(|(_, why)| *why)),
        ];
        values.extend(end);
        values
    }
}

/// The rows of sessions and their ends, each read once. A row is `None` if the session has closed or was taken over, an
/// end is `None` if none is known.
#[derive(Default)]
struct Sessions {
    rows: HashMap<Uuid, Option<SessionRow>>,
    ends: HashMap<Uuid, Option<i64>>,
}

impl Sessions {
    fn of(&mut self, session: Uuid) -> Option<&SessionRow> {
        self.rows.entry(session).or_insert_with(|| session::row(session)).as_ref()
    }

    fn ended_at(&mut self, call: &Call, session: Uuid) -> Option<i64> {
        if let Some(known) = self.ends.get(&session) {
            return *known;
        }
        let row = self.of(session).map(|row| (row.boot_id, row.ttl_ms));
        let ended_at = session::ended_at(call.shared, call.home, session, row);
        self.ends.insert(session, ended_at);
        ended_at
    }

    /// Returns the consumer of a session. A session that was taken over has no row any more, but its successor has the
    /// same name.
    fn name(&mut self, session: Uuid) -> Option<String> {
        let name = |row: &SessionRow| row.consumer.clone();
        self.of(session).map(name).or_else(|| self.of(succession::successor(session)?).map(name))
    }

    /// Returns how a dead session lost a lease. A session without a row has closed or was taken over. A lease that
    /// lapses in grace had been released.
    fn end_of_dead(&mut self, from: Uuid) -> Event {
        match self.of(from) {
            Some(row) if row.fencer.is_none() => Event::Expired,
            None if succession::successor(from).is_some() => Event::TakenOver,
            _ => Event::Released,
        }
    }
}

fn write(call: &Call, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    let table = Table::open(c"_history", c"_history_at");
    let has_end = table.has_columns(COLUMNS);
    for entry in entries {
        // There may be 100,000 entries.
        pgrx::check_for_interrupts!();
        let now = clock::timestamp();
        let end = || has_end.then(|| entry.end(now).map_or(Value::Null, |end| Value::Datum(Datum::from(end))));
        let columns: Vec<Option<Datum>> =
            std::iter::once(Some(Datum::from(now))).chain(entry.values(end()).into_iter().map(Value::datum)).collect();
        if !table.try_insert(&columns) {
            call.db().execute(if has_end { &INSERT } else { &INSERT_FORMER }, entry.values(end()));
        }
    }
    call.seam().kept(Kept::History);
}

/// Records grants: how each former holder lost its lease, and with `history_grants` also releases and the new holders.
pub fn granted(call: &Call, granted: &[(Candidate, i64)]) {
    let lost = |candidate: &Candidate| candidate.taken_from().is_some() && (!candidate.released || candidate.inherited);
    let (with_grants, mut entries) = (has_grants(), Vec::new());
    if !(with_grants || granted.iter().any(|(candidate, _)| lost(candidate)) && has_losses()) {
        return;
    }
    let mut sessions = Sessions::default();
    for (candidate, fence) in granted.iter().filter(|(candidate, _)| with_grants || lost(candidate)) {
        let (resource, slot, grantee) = (&candidate.resource, candidate.slot, candidate.grantee.session());
        let next = holders::name(grantee);
        if let Some((from, row)) = candidate.taken_from() {
            let event = match (candidate.inherited, candidate.released) {
                (true, _) => Event::TakenOver,
                (false, true) => Event::Released,
                (false, false) => sessions.end_of_dead(from),
            };
            let consumer = sessions.name(from);
            if with_grants || !event.is_ordinary() {
                let (next, ended_at) = (next.clone().map(|next| (next, *fence)), sessions.ended_at(call, from));
                entries.push(Entry { next, ended_at, ..Entry::new(event, resource, slot, row.fence, consumer) });
            }
        }
        if with_grants {
            entries.push(Entry::new(Event::Granted, resource, slot, *fence, next));
        }
    }
    write(call, &entries);
}

/// Records leases that were freed and went to no other session. `dead`: their sessions are dead; otherwise the sessions
/// have released them.
pub fn freed<'a>(call: &Call, leases: impl Iterator<Item = (&'a Seat, i64, Option<Uuid>)>, dead: bool) {
    let with_grants = has_grants();
    if !(with_grants || dead && has_losses()) {
        return;
    }
    let (mut sessions, mut entries) = (Sessions::default(), Vec::new());
    for ((resource, slot), fence, from) in leases {
        let Some(from) = from else { continue };
        let event = if dead { sessions.end_of_dead(from) } else { Event::Released };
        if with_grants || !event.is_ordinary() {
            let ended_at = if dead { sessions.ended_at(call, from) } else { None };
            entries.push(Entry { ended_at, ..Entry::new(event, resource, *slot, fence, sessions.name(from)) });
        }
    }
    write(call, &entries);
}

/// Records partitions that were taken from living owners, each with the session that got it and its fence.
pub fn revoked<'a>(call: &Call, group: &str, taken: impl Iterator<Item = (&'a LeaseRow, Option<(Uuid, i64)>)>) {
    if !has_losses() {
        return;
    }
    let mut sessions = Sessions::default();
    let entries: Vec<Entry> = taken
        .map(|(row, next)| {
            let consumer = row.session.and_then(|from| sessions.name(from));
            let next = next.and_then(|(to, fence)| Some((sessions.name(to)?, fence)));
            Entry { next, ..Entry::new(Event::Revoked, group, row.slot, row.fence, consumer) }
        })
        .collect();
    write(call, &entries);
}

/// Returns the slot that an administrator took from this fence, within a [`MOMENT`] after it was freed or given on.
/// `changes`: the slots that may be the one, and when each was freed or given on, in microseconds since 2000. Looks at
/// [`LOOKED_THROUGH`] versions of rows at most, those after the latest change first. Returns `None` while another
/// session has the table locked.
pub fn forced_slot(resource: &str, fence: i64, mut changes: Vec<(i32, i64)>) -> Option<i32> {
    if changes.is_empty() || !is_there() || !catalog::lock_all(&[c"_history"]) {
        return None;
    }
    changes.sort_unstable_by_key(|(_, since)| std::cmp::Reverse(*since));
    let table = Table::open(c"_history", c"_history_at");
    let is_it = |row: &Tuple| {
        row.required::<i64>(column::FENCE) == fence
            && *row.required::<Text>(column::EVENT) == *Event::Forced.name()
            && *row.required::<Text>(column::RESOURCE) == *resource
    };
    let (mut left, mut looked_from) = (LOOKED_THROUGH, i64::MAX);
    for (_, since) in &changes {
        let key = [Key::TimeFrom(*since)];
        let mut walk = table.walk_versions(Sight::Latest, &key);
        loop {
            let stand = walk.one_version();
            let row = match stand {
                Stand::End => break,
                Stand::Stale | Stand::Row(_) => table.row(),
            };
            let at = row.required::<i64>(column::AT);
            if at > since + MOMENT || at >= looked_from {
                break;
            }
            if matches!(stand, Stand::Row(_)) && is_it(&row) {
                // A fence is lost once, so no other row tells of it.
                let slot = row.required::<i32>(column::SLOT);
                let is_of = |(changed, since): &(i32, i64)| *changed == slot && (*since..=since + MOMENT).contains(&at);
                return changes.iter().any(is_of).then_some(slot);
            }
            left -= 1;
            if left == 0 {
                return None;
            }
        }
        looked_from = *since;
    }
    None
}

/// Records that the caller has taken a lease from `holder`, and which session got it, if one did.
pub fn forced(call: &Call, resource: &str, row: &LeaseRow, holder: Option<String>, next: Option<LeaseRow>, why: &str) {
    if !has_losses() {
        return;
    }
    let next = next.and_then(|next| Some((session::row(next.session?)?.consumer, next.fence)));
    let forced = Some((role_name(call.caller), why));
    let entry = Entry { next, forced, ..Entry::new(Event::Forced, resource, row.slot, row.fence, holder) };
    write(call, &[entry]);
}
