//! Lines of the server's log for sessions that have expired, or were taken over. `eskit_lease.log_ends` chooses their
//! level.
//!
//! A pass logs each expired session when it first finds the session dead, that is, before the session's leases can be
//! handed over. A take-over is logged just before its commit; one that is prepared is not logged. All processes of a
//! database share one clock for the lines: a second passes between two of them, and each counts all ends since the line
//! before. The launcher logs the remaining ends, as no further pass may come.

use crate::base::error::Result;
use crate::base::settings::{LOG_ENDS, LogEnds};
use crate::call::Call;
use crate::pg::{catalog, clock};
use crate::session;
use crate::shmem::Shared;
use crate::shmem::databases::Database;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, Uuid};
use std::sync::atomic::Ordering;

const EXPIRED: usize = 0;
const TAKEN_OVER: usize = 1;

fn level() -> Option<PgLogLevel> {
    match LOG_ENDS.get() {
        LogEnds::Off => None,
        LogEnds::Debug1 => Some(PgLogLevel::DEBUG1),
        LogEnds::Log => Some(PgLogLevel::LOG),
        LogEnds::Warning => Some(PgLogLevel::WARNING),
    }
}

/// Logs those dead sessions that have expired and are not in the log yet. Sessions without a row were closed, or taken
/// over.
pub fn expired(call: &Call, dead: &[Uuid]) {
    if level().is_none() {
        return;
    }
    let is_new = |session: &Uuid| call.shared.find(call.home, *session).is_some_and(|at| call.shared.tell_of(at));
    let new: Vec<Uuid> = dead.iter().copied().filter(is_new).collect();
    let rows = session::rows(&new);
    let Some(last) = rows.last() else { return };
    call.database.count_ends(EXPIRED, u32::try_from(rows.len()).unwrap_or(u32::MAX));
    tell(call.database, EXPIRED, &last.consumer);
}

/// Logs, at the commit of this transaction, that a consumer's session is taken over.
pub fn taken_over(call: &Call, consumer: &str) {
    if level().is_some() {
        call.seam().at_commit(consumer, tell_of_takeover);
    }
}

fn tell_of_takeover(shared: &'static Shared, consumer: &str) -> Result<()> {
    let database = shared.database(catalog::home())?;
    database.count_ends(TAKEN_OVER, 1);
    tell(database, TAKEN_OVER, consumer);
    Ok(())
}

/// Logs all ends that have no line yet, if it is time. `kind` and `consumer` are those of the last end. The caller is
/// in a transaction.
fn tell(database: &Database, kind: usize, consumer: &str) {
    let how = if kind == EXPIRED { "expired" } else { "taken over" };
    write(database, catalog::database_name, &format!(", last that of consumer \"{consumer}\" ({how})"));
}

/// Logs the ends that have no line yet in all databases, if it is time. `name` tells the name of a database. Returns
/// when more are due.
pub fn remaining(shared: &Shared, now: u64, name: impl Fn(u32) -> Option<String>) -> Option<u64> {
    let due = |database: &Database| Some((database.ends_due()?, database.oid.load(Ordering::Acquire)));
    let mut next = None;
    for database in shared.databases {
        match due(database) {
            Some((at, oid)) if at <= now => {
                if let Some(name) = name(oid) {
                    write(database, || name, "");
                }
            }
            Some((at, _)) => next = Some(next.map_or(at, |next: u64| next.min(at))),
            None => (),
        }
    }
    next
}

fn write(database: &Database, name: impl FnOnce() -> String, last: &str) {
    let (Some(level), ends) = (level(), database.ends_to_tell(clock::now())) else { return };
    if ends == [0; 2] {
        return;
    }
    let of = |kind: usize, what: &str| match ends[kind] {
        0 => None,
        1 => Some(format!("1 session {what}")),
        count => Some(format!("{count} sessions {what}")),
    };
    let told: Vec<String> = [of(EXPIRED, "expired"), of(TAKEN_OVER, "taken over")].into_iter().flatten().collect();
    let message = format!("eskit_lease: {} in database \"{}\"{last}", told.join(" and "), name());
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "write").report(level);
}
