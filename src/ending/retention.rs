//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! After each pass of a sweep the worker retires rows, in a transaction of its own: once a minute at most, or ten times
//! in the shortest retention. After a pass that looks through the database, as after a start, it does so at once.
//!
//! **When there is nothing else to do.** Shared memory holds since when the oldest row that was left is kept, so that
//! the worker comes when its time is over. With none left, the transaction that ends the next row says so, when that is
//! visible (see [`crate::seam`]).
//!
//! **Where a batch begins.** An old snapshot may still see what has been deleted, and a scan steps over all of it. So a
//! batch begins where the one before has ended ([`Progress`]), and the worker's next run begins at the oldest row that
//! its last run has left. A transaction that commits later may have ended a row before that: shared memory then moves
//! the beginning back to the start of that transaction ([`crate::shmem::beginning`]). Releases do not say so, nor do
//! administrators who write rows. So once an hour a run begins at the oldest row of all, and so does each run after a
//! look through the database, and each that is not the worker's.

use crate::base::{limits, settings};
use crate::call::Call;
use crate::lease::history;
use crate::pg::catalog;
use crate::pg::spi::{Row, Statement, Value};
use crate::shmem::databases::{Database, Kept};
use crate::{execution, item};
use pgrx::GucSetting;
use pgrx::pg_sys::{FLOAT8OID, INT8OID, TIMESTAMPTZOID};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

static RETIRE_LEASES: Statement =
    Statement::tidies(include_str!("../../sql/query/lease/retire.sql"), &[FLOAT8OID, INT8OID, TIMESTAMPTZOID]);
static OLDEST_LEASE: Statement = Statement::reads(include_str!("../../sql/query/lease/oldest.sql"), &[TIMESTAMPTZOID]);

struct Kind {
    kept: Kept,
    table: &'static CStr,
    /// For so many seconds; -1: for ever.
    setting: &'static GucSetting<i32>,
    retire: &'static Statement,
    oldest: &'static Statement,
}

static KINDS: [Kind; 5] = [
    Kind {
        kept: Kept::Leases,
        table: c"_leases",
        setting: &settings::ROW_RETENTION,
        retire: &RETIRE_LEASES,
        oldest: &OLDEST_LEASE,
    },
    Kind {
        kept: Kept::Executions,
        table: c"_executions",
        setting: &settings::EXECUTION_RETENTION,
        retire: &execution::RETIRE,
        oldest: &execution::OLDEST,
    },
    Kind {
        kept: Kept::DeadItems,
        table: c"_dead_items",
        setting: &settings::DEAD_ITEM_RETENTION,
        retire: &item::RETIRE,
        oldest: &item::OLDEST,
    },
    // No view shows these; they only take room.
    Kind {
        kept: Kept::Claims,
        table: c"_claims",
        setting: &settings::ROW_RETENTION,
        retire: &item::RETIRE_CLAIMS,
        oldest: &item::OLDEST_CLAIM,
    },
    Kind {
        kept: Kept::History,
        table: c"_history",
        setting: &settings::HISTORY_RETENTION,
        retire: &history::RETIRE,
        oldest: &history::OLDEST,
    },
];

impl Kind {
    fn seconds(&self) -> Option<u32> {
        u32::try_from(self.setting.get()).ok()
    }

    /// Deletes a batch of those that have been kept long enough. Returns whether there may be more of them.
    fn has_more(&self, call: &Call, most: usize, span: &mut Span) -> bool {
        let Some(seconds) = self.seconds() else { return false };
        let values = vec![Value::Double(seconds.into()), Value::Long(most as i64), Value::Long(span.until)];
        let gone = call.db().run(self.retire, values, |row| (row.long(1), row.get::<i64>(2))).pop();
        let Some((count, until)) = gone else { return false };
        if self.kept == Kept::Leases && count != 0 {
            call.shared.removed_permits(call.home);
        }
        debug_assert!(until.is_none_or(|until| until >= span.until), "a batch begins where the one before has ended");
        span.until = until.unwrap_or(span.until);
        count == most as i64
    }

    /// Says since when the oldest row that is left is kept, so that the worker comes when its time is over.
    fn look_for_oldest(&self, call: &Call, now: u64, span: &mut Span) {
        let may_miss = call.database.look_for_kept(self.kept);
        let read = |row: Row| Some((row.get::<f64>(1)?, row.get::<i64>(2)?));
        let oldest = call.db().run(self.oldest, vec![Value::Long(span.from)], read).pop().flatten();
        let age = oldest.map(|(age, _)| age).or(may_miss.then_some(0.0));
        call.database.found_kept(self.kept, age.map(|age| now.cast_signed() - (age * 1e6) as i64));
        span.next = Some(oldest.map_or(span.until, |(_, ended)| ended));
    }
}

/// When it is time to look for rows that are older than their retention.
fn next_look(database: &Database) -> u64 {
    // Of a history that is off there are no new rows.
    let kinds = KINDS.iter().filter(|kind| kind.kept != Kept::History || kind.setting.get() != 0);
    let shortest = kinds.filter_map(Kind::seconds).min().map_or(u64::MAX, u64::from);
    let every = shortest.saturating_mul(100_000).clamp(1_000_000, 60_000_000);
    match database.retention_looked.load(Ordering::Relaxed) {
        0 => 0,
        looked => looked + every,
    }
}

/// Returns when the worker has to come for them.
pub fn due(database: &Database) -> Option<u64> {
    let due = |kind: &Kind| {
        let span = i64::from(kind.seconds()?) * 1_000_000;
        Some(database.kept_since(kind.kept)?.saturating_add(span).max(0).cast_unsigned())
    };
    KINDS.iter().filter_map(due).min().map(|due| due.max(next_look(database)))
}

/// How far a run has come with one kind. Times are those of ends of rows, in microseconds since 2000.
struct Span {
    from: i64,
    /// The last end of a row that it has deleted.
    until: i64,
    /// Where the next run is to begin, once this one is through.
    next: Option<i64>,
}

/// How far runs have come, for one process that deletes several batches in a row, each in a transaction that does not
/// fail.
pub struct Progress {
    /// Whether it begins at what the last run has left, and says where the next one is to begin.
    is_worker: bool,
    spans: [Option<Span>; KINDS.len()],
}

impl Progress {
    /// That of the worker of a database.
    pub fn of_worker() -> Progress {
        Progress { is_worker: true, ..Progress::from_the_oldest() }
    }

    /// That of a single batch, which begins at the oldest row.
    pub fn from_the_oldest() -> Progress {
        Progress { is_worker: false, spans: [const { None }; KINDS.len()] }
    }

    /// After the commit: says where the next run begins with the kinds that this one is through with.
    pub fn is_committed(&mut self, database: &Database) {
        for (kind, span) in KINDS.iter().zip(&mut self.spans) {
            if let Some(next) = span.as_ref().and_then(|span| span.next) {
                database.retire_from(kind.kept).set(next);
                *span = None;
            }
        }
    }
}

/// Whether it is time to look for such rows.
pub fn is_time(database: &Database, now: u64, at_once: bool) -> bool {
    at_once || now >= next_look(database)
}

/// Deletes rows that have been kept long enough, up to `most` of a kind. Returns whether there are more.
pub fn retire(call: &Call, now: u64, most: usize, at_once: bool, progress: &mut Progress) -> bool {
    let database = call.database;
    call.seam().retired();
    let (mut more, first) = (false, database.retention_looked.load(Ordering::Relaxed) == 0);
    let may_be = |kind: &Kind| match kind.kept {
        // To look for such claims is to look at all claims, and there is hardly ever one.
        Kept::Claims => at_once || first || database.kept_since(kind.kept).is_some(),
        Kept::History => history::is_there(),
        _ => true,
    };
    let anew = at_once || now >= database.retired_anew.load(Ordering::Relaxed) + limits::RETIRE_ANEW;
    for (kind, span) in KINDS.iter().zip(&mut progress.spans) {
        if !may_be(kind) {
            // Version 0.1.0 has no history that could have rows.
            if kind.kept == Kept::History {
                database.look_for_kept(kind.kept);
                database.found_kept(kind.kept, None);
            }
            continue;
        }
        if !catalog::try_lock(kind.table) {
            // A session that has it locked may have it for long, as VACUUM FULL does, and hand-overs would wait: the
            // worker comes again later.
            database.are_kept(kind.kept);
            continue;
        }
        let span = span.get_or_insert_with(|| {
            // Claims are deleted in no order.
            let goes_on = progress.is_worker && kind.kept != Kept::Claims;
            let left = if goes_on { database.retire_from(kind.kept).take() } else { i64::MIN };
            let from = if anew { i64::MIN } else { left };
            Span { from, until: from, next: None }
        });
        if kind.has_more(call, most, span) {
            more = true;
            // The worker comes at once. It also comes for rows of before a start, which no transaction has noted.
            database.are_kept(kind.kept);
        } else {
            kind.look_for_oldest(call, now, span);
        }
    }
    if !more {
        database.retention_looked.store(now, Ordering::Relaxed);
        if anew && progress.is_worker {
            database.retired_anew.store(now, Ordering::Relaxed);
        }
    }
    more
}
