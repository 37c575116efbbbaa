//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! Every pass of a sweep sees to it, once a minute at most, or ten times in the shortest retention; one that looks through the database, as
//! after a start, at once. And somebody comes when the oldest row that was left has been kept long enough, though nothing else happens: shared
//! memory holds since when it is kept. With none left, whoever ends the next one says so, when that is visible (see [`crate::seam`]).

use crate::call::Call;
use crate::liveness::databases::{Database, Kept};
use crate::settings;
use crate::spi::{Statement, Value};
use crate::{execution, item};
use pgrx::GucSetting;
use pgrx::pg_sys::{FLOAT8OID, INT8OID};
use std::sync::atomic::Ordering;

static RETIRE_LEASES: Statement =
    Statement::tidies(include_str!("../sql/query/lease/retire.sql"), &[FLOAT8OID, INT8OID]);
static OLDEST_LEASE: Statement = Statement::reads(include_str!("../sql/query/lease/oldest.sql"), &[]);

struct Kind {
    kept: Kept,
    /// For so many seconds; -1: for ever.
    setting: &'static GucSetting<i32>,
    retire: &'static Statement,
    oldest: &'static Statement,
}

static KINDS: [Kind; 4] = [
    Kind { kept: Kept::Leases, setting: &settings::ROW_RETENTION, retire: &RETIRE_LEASES, oldest: &OLDEST_LEASE },
    Kind {
        kept: Kept::Executions,
        setting: &settings::EXECUTION_RETENTION,
        retire: &execution::RETIRE,
        oldest: &execution::OLDEST,
    },
    Kind {
        kept: Kept::DeadItems,
        setting: &settings::DEAD_ITEM_RETENTION,
        retire: &item::RETIRE,
        oldest: &item::OLDEST,
    },
    // Nobody looks at these; they only take room.
    Kind {
        kept: Kept::Claims,
        setting: &settings::ROW_RETENTION,
        retire: &item::RETIRE_CLAIMS,
        oldest: &item::OLDEST_CLAIM,
    },
];

impl Kind {
    fn seconds(&self) -> Option<u32> {
        u32::try_from(self.setting.get()).ok()
    }
}

/// When it is time to look for rows that are older than their retention.
fn next_look(database: &Database) -> u64 {
    let shortest = KINDS.iter().filter_map(Kind::seconds).min().map_or(u64::MAX, u64::from);
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

/// Deletes rows that have been kept long enough, up to `most` of a kind. Whether there are more.
pub fn retire(call: &Call, now: u64, most: usize, at_once: bool) -> bool {
    let database = call.database;
    if !at_once && now < next_look(database) {
        return false;
    }
    call.seam().retired();
    let (mut more, first) = (false, database.retention_looked.load(Ordering::Relaxed) == 0);
    // To look for such claims is to look at all claims, and there is hardly ever one.
    let may_be =
        |kind: &Kind| kind.kept != Kept::Claims || at_once || first || database.kept_since(kind.kept).is_some();
    for kind in KINDS.iter().filter(|kind| may_be(kind)) {
        if let Some(seconds) = kind.seconds() {
            let values = vec![Value::Double(seconds.into()), Value::Long(most as i64)];
            more |= call.db().execute(kind.retire, values) == most as u64;
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
