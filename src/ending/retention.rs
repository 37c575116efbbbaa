//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! After each pass of a sweep the worker sees to it, in a transaction of its own, once a minute at most, or ten times
//! in the shortest retention; after one that looks through the database, as after a start, at once. A batch of the
//! worker begins where the one before has ended: what has been deleted may still be there for an old snapshot, and is
//! not to be looked at again and again. And somebody comes when the oldest row that was left has been kept long enough,
//! though nothing else happens: shared memory holds since when it is kept. With none left, whoever ends the next one
//! says so, when that is visible (see [`crate::seam`]).

use crate::base::settings;
use crate::call::Call;
use crate::lease::history;
use crate::pg::catalog;
use crate::pg::spi::{Statement, Value};
use crate::shmem::databases::{Database, Kept};
use crate::{execution, item};
use pgrx::GucSetting;
use pgrx::pg_sys::{FLOAT8OID, INT8OID};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

static RETIRE_LEASES: Statement =
    Statement::tidies(include_str!("../../sql/query/lease/retire.sql"), &[FLOAT8OID, INT8OID, FLOAT8OID]);
static OLDEST_LEASE: Statement = Statement::reads(include_str!("../../sql/query/lease/oldest.sql"), &[]);

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
    // Nobody looks at these; they only take room.
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

/// When somebody has to come for them.
pub fn due(database: &Database) -> Option<u64> {
    let due = |kind: &Kind| {
        let span = i64::from(kind.seconds()?) * 1_000_000;
        Some(database.kept_since(kind.kept)?.saturating_add(span).max(0).cast_unsigned())
    };
    KINDS.iter().filter_map(due).min().map(|due| due.max(next_look(database)))
}

/// Of each kind, the end of the last row of a batch after which there may be more, in seconds since 1970: for whoever
/// deletes several in a row, each in a transaction that does not fail.
#[derive(Default)]
pub struct DoneUntil([Option<f64>; KINDS.len()]);

/// Whether it is time to look for such rows.
pub fn is_time(database: &Database, now: u64, at_once: bool) -> bool {
    at_once || now >= next_look(database)
}

/// Deletes rows that have been kept long enough, up to `most` of a kind. Whether there are more.
pub fn retire(call: &Call, now: u64, most: usize, at_once: bool, done: &mut DoneUntil) -> bool {
    let database = call.database;
    call.seam().retired();
    let (mut more, first) = (false, database.retention_looked.load(Ordering::Relaxed) == 0);
    let may_be = |kind: &Kind| match kind.kept {
        // To look for such claims is to look at all claims, and there is hardly ever one.
        Kept::Claims => at_once || first || database.kept_since(kind.kept).is_some(),
        Kept::History => history::is_there(),
        _ => true,
    };
    for (kind, done) in KINDS.iter().zip(&mut done.0) {
        if !may_be(kind) {
            // Version 0.1.0 has no history, of which there may be said to be rows.
            if kind.kept == Kept::History {
                database.look_for_kept(kind.kept);
                database.found_kept(kind.kept, None);
            }
            continue;
        }
        if !catalog::try_lock(kind.table) {
            // Whoever has it locked may have it for long, as VACUUM FULL does, and hand-overs would wait: somebody
            // comes again later.
            database.are_kept(kind.kept);
            continue;
        }
        if let Some(seconds) = kind.seconds() {
            let from = done.take().unwrap_or(0.0);
            let values = vec![Value::Double(seconds.into()), Value::Long(most as i64), Value::Double(from)];
            let gone = call.db().run(kind.retire, values, |row| (row.long(1), row.get::<f64>(2))).pop();
            if kind.kept == Kept::Leases && gone.is_some_and(|(count, _)| count != 0) {
                call.shared.removed_permits(call.home);
            }
            if let Some((_, until)) = gone.filter(|(count, _)| *count == most as i64) {
                (*done, more) = (until, true);
                // Somebody comes at once, also for rows of before a start, of which nobody has said that there are any.
                database.are_kept(kind.kept);
                continue;
            }
        }
        // Then somebody comes again.
        let may_miss = database.look_for_kept(kind.kept);
        let oldest = call.db().run(kind.oldest, vec![], |row| row.get::<f64>(1)).pop().flatten();
        let age = oldest.or(may_miss.then_some(0.0));
        database.found_kept(kind.kept, age.map(|age| now.cast_signed() - (age * 1e6) as i64));
    }
    if !more {
        database.retention_looked.store(now, Ordering::Relaxed);
    }
    more
}
