//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! Every pass of a sweep sees to it, once a minute at most, or ten times in the shortest retention. Sessions that live on, and do nothing but
//! begin and finish executions, give the worker no reason for a pass: so each beginning asks for one.

use crate::call::Call;
use crate::execution;
use crate::liveness::databases::Database;
use crate::settings;
use crate::spi::{Statement, Value};
use pgrx::pg_sys::{FLOAT8OID, INT8OID};
use std::sync::atomic::Ordering;

static LEASES: Statement = Statement::tidies(include_str!("../sql/query/sweep/retention.sql"), &[FLOAT8OID, INT8OID]);

/// Microseconds between looks for rows that are older than their retention.
fn every() -> u64 {
    let shortest = kinds().into_iter().filter_map(|(_, seconds)| u64::try_from(seconds).ok()).min().unwrap_or(u64::MAX);
    shortest.saturating_mul(100_000).clamp(1_000_000, 60_000_000)
}

/// What is kept, and for how many seconds; -1: for ever.
fn kinds() -> [(&'static Statement, i32); 2] {
    [(&LEASES, settings::ROW_RETENTION.get()), (&execution::RETENTION, settings::EXECUTION_RETENTION.get())]
}

/// When somebody has to come for them.
pub fn due(database: &Database) -> Option<u64> {
    database.retention_wanted().then(|| database.retention_looked.load(Ordering::Relaxed) + every())
}

/// Deletes rows that have been kept long enough, up to `most` of a kind. Whether there are more.
pub fn retire(call: &Call, now: u64, most: usize) -> bool {
    let looked = &call.database.retention_looked;
    if now < looked.load(Ordering::Relaxed) + every() {
        return false;
    }
    let mut more = false;
    for (statement, seconds) in kinds().into_iter().filter(|(_, seconds)| *seconds >= 0) {
        let values = vec![Value::Double(f64::from(seconds)), Value::Long(most as i64)];
        more |= call.db().execute(statement, values) == most as u64;
    }
    if !more {
        looked.store(now, Ordering::Relaxed);
    }
    call.database.want_retention(more);
    more
}

/// Has the worker come when it is time to look again.
pub fn ask(call: &Call) {
    if call.database.want_retention(true) {
        call.shared.wake(call.database);
    }
}
