//! Retention: rows that are kept for a while after their end, for people to see, and then deleted in bounded batches.
//!
//! Every pass of a sweep sees to it, once a minute at most. Sessions that live on, and do nothing but begin and finish executions, give
//! the worker no reason for a pass: so each beginning asks for one.

use crate::call::Call;
use crate::execution;
use crate::settings;
use crate::spi::{Statement, Value};
use pgrx::pg_sys::{FLOAT8OID, INT8OID};
use std::sync::atomic::Ordering;

static LEASES: Statement = Statement::tidies(include_str!("../sql/query/sweep/retention.sql"), &[FLOAT8OID, INT8OID]);

/// Microseconds between looks for rows that are older than the retention.
const EVERY: u64 = 60_000_000;

/// Deletes rows that have been kept long enough, up to `most` of a kind. Whether there are more.
pub fn retire(call: &Call, now: u64, most: usize) -> bool {
    let due = &call.database.retention_due;
    if now < due.load(Ordering::Relaxed) {
        return false;
    }
    let kinds =
        [(&LEASES, settings::ROW_RETENTION.get()), (&execution::RETENTION, settings::EXECUTION_RETENTION.get())];
    let mut more = false;
    for (statement, seconds) in kinds {
        // -1: for ever.
        if seconds >= 0 {
            let values = vec![Value::Double(f64::from(seconds)), Value::Long(most as i64)];
            more |= call.db().execute(statement, values) == most as u64;
        }
    }
    if !more {
        due.store(now + EVERY, Ordering::Relaxed);
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
