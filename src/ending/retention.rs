//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! The worker retires rows after a pass of a sweep, in a transaction of its own. A run begins at most once a minute, or
//! ten times in the shortest retention if that is more often, but not more than once a second. After a pass that looks
//! through the database, as after a start, it happens at once.
//!
//! **When the worker has nothing else to do.** Shared memory has the time since when the oldest remaining row is kept.
//! So the worker comes when the retention of that row is over. If no row remains, the transaction that ends the next
//! row tells shared memory, once that end is visible (see [`crate::seam`]).
//!
//! **Where a batch begins.** An old snapshot may still see deleted rows, and a scan steps over all of them. So a batch
//! begins where the one before ended ([`Progress`]). The worker's next run begins at the oldest row that its last run
//! left. A transaction that commits later may have ended a row before that point. Then shared memory moves the
//! beginning back to the start of that transaction ([`crate::shmem::beginning`]). Releases do not move it, and neither
//! do administrators who write rows. So four kinds of run begin at the oldest row of all: one each hour, each after a
//! look through the database, each after a run that did not finish, and each run that is not the worker's.

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
    /// The seconds for which rows are kept; -1: forever.
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
    // No view shows claims that have ended; they only take room.
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

    /// Deletes a batch of rows that have been kept long enough. Returns whether there may be more of them.
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

    /// Tells shared memory since when the oldest remaining row is kept, so that the worker comes when its retention is
    /// over.
    fn look_for_oldest(&self, call: &Call, now: u64, span: &mut Span) {
        let may_miss = call.database.look_for_kept(self.kept);
        let read = |row: Row| Some((row.get::<f64>(1)?, row.get::<i64>(2)?));
        let oldest = call.db().run(self.oldest, vec![Value::Long(span.from)], read).pop().flatten();
        let age = oldest.map(|(age, _)| age).or(may_miss.then_some(0.0));
        call.database.found_kept(self.kept, age.map(|age| now.cast_signed() - (age * 1e6) as i64));
        span.next = Some(oldest.map_or(span.until, |(_, ended)| ended));
    }
}

/// Returns the time of the next look for rows that are older than their retention.
fn next_look(database: &Database) -> u64 {
    // A history that is switched off gets no new rows.
    let kinds = KINDS.iter().filter(|kind| kind.kept != Kept::History || kind.setting.get() != 0);
    let shortest = kinds.filter_map(Kind::seconds).min().map_or(u64::MAX, u64::from);
    let every = shortest.saturating_mul(100_000).clamp(1_000_000, 60_000_000);
    match database.retention_looked.load(Ordering::Relaxed) {
        0 => 0,
        looked => looked + every,
    }
}

/// Returns the time at which the worker must come to retire rows.
pub fn due(database: &Database) -> Option<u64> {
    let due = |kind: &Kind| {
        let span = i64::from(kind.seconds()?) * 1_000_000;
        Some(database.kept_since(kind.kept)?.saturating_add(span).max(0).cast_unsigned())
    };
    KINDS.iter().filter_map(due).min().map(|due| due.max(next_look(database)))
}

/// The progress of a run with one kind of row. Times are the ends of rows, in microseconds since 2000.
struct Span {
    from: i64,
    /// The latest end of a row that the run has deleted.
    until: i64,
    /// Where the next run begins; set once this run has finished.
    next: Option<i64>,
}

/// The progress of one process that deletes several batches in a row, each in a transaction that does not fail.
pub struct Progress {
    /// Whether the run begins where the last one ended, and sets where the next one begins.
    is_worker: bool,
    spans: [Option<Span>; KINDS.len()],
}

impl Progress {
    /// Returns the progress of the worker of a database.
    pub fn of_worker() -> Progress {
        Progress { is_worker: true, ..Progress::from_the_oldest() }
    }

    /// Returns the progress of a single batch, which begins at the oldest row.
    pub fn from_the_oldest() -> Progress {
        Progress { is_worker: false, spans: [const { None }; KINDS.len()] }
    }

    /// Sets where the next run begins, for the kinds that this one has finished. The caller has committed the batch.
    pub fn is_committed(&mut self, database: &Database) {
        for (kind, span) in KINDS.iter().zip(&mut self.spans) {
            if let Some(next) = span.as_ref().and_then(|span| span.next) {
                database.retire_from(kind.kept).set(next);
                *span = None;
            }
        }
    }
}

/// Returns whether it is time to look for rows that are older than their retention.
pub fn is_time(database: &Database, now: u64, at_once: bool) -> bool {
    at_once || now >= next_look(database)
}

/// Deletes rows that have been kept long enough, up to `most` of a kind. Returns whether there are more.
pub fn retire(call: &Call, now: u64, most: usize, at_once: bool, progress: &mut Progress) -> bool {
    let database = call.database;
    call.seam().retired();
    let (mut more, first) = (false, database.retention_looked.load(Ordering::Relaxed) == 0);
    let may_be = |kind: &Kind| match kind.kept {
        // A look for ended claims reads all claims, and hardly ever finds one.
        Kept::Claims => at_once || first || database.kept_since(kind.kept).is_some(),
        Kept::History => history::is_there(),
        _ => true,
    };
    let anew = at_once || now >= database.retired_anew.load(Ordering::Relaxed) + limits::RETIRE_ANEW;
    for (kind, span) in KINDS.iter().zip(&mut progress.spans) {
        if !may_be(kind) {
            // A database of version 0.1.0 has no history.
            if kind.kept == Kept::History {
                database.look_for_kept(kind.kept);
                database.found_kept(kind.kept, None);
            }
            continue;
        }
        if !catalog::try_lock(kind.table) {
            // Another session, such as one that runs VACUUM FULL, may keep the table locked for long, and hand-overs
            // would wait. The worker comes again later.
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
            // This brings the worker at once. It also brings the worker for rows that ended before the start, which no
            // transaction has noted.
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
