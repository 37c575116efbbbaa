//! Counts the held leases, for metrics. There may be a million.

use crate::base::error::Result;
use crate::base::limits;
use crate::call::in_recovery;
use crate::pg::spi::Db;
use crate::pg::statistics::{self, Which};
use crate::pg::table::{Sight, Stand, Table};
use crate::pg::{catalog, clock, row};
use crate::session::{self, SessionRow};
use crate::shmem::shared;
use pgrx::Uuid;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

row::composite! {
    /// How many leases living sessions hold.
    HeldCount = "eskit_lease._held_count" {
        held: i64,
        counted_at: Option<TimestampWithTimeZone>,
    }
}

/// Returns whether the leases of a session count as held. On a standby all do, since no standby knows which sessions
/// live.
fn lives(session: Uuid) -> Result<bool> {
    let (shared, home) = (shared()?, catalog::home());
    if in_recovery() {
        return Ok(true);
    }
    if let Some(standing) = shared.find(home, session).and_then(|at| shared.look(at)) {
        return Ok(standing.alive());
    }
    let standing = |row: SessionRow| session::standing(shared, home, session, row.boot_id, row.ttl_ms);
    Ok(session::row(session).is_some_and(|row| standing(row).alive()))
}

/// Counts the leases of living sessions. If it would have to look at too many leases or too many old versions, returns
/// the count so far as an error.
fn few(table: &Table) -> Result<std::result::Result<i64, i64>> {
    let mut walk = table.walk_versions(Sight::Caller, &[]);
    let (mut held, mut seen, mut passed) = (0, 0, 0);
    // The leases of one session come one after another, so the state of the last session is all that the walk keeps.
    let mut last: Option<(Uuid, bool)> = None;
    loop {
        match walk.one_version() {
            Stand::Row(_) => {
                let session = table.row().required(3);
                let alive = match last {
                    Some((known, alive)) if known == session => alive,
                    _ => lives(session)?,
                };
                last = Some((session, alive));
                seen += 1;
                held += i64::from(alive);
            }
            Stand::Stale => passed += 1,
            Stand::End => return Ok(Ok(held)),
        }
        if seen > limits::MAX_COUNTED || passed > limits::MAX_PASSED {
            return Ok(Err(held));
        }
    }
}

#[pg_extern(schema = "eskit_lease")]
fn _count_held() -> Result<HeldCount> {
    let time = |at: Option<i64>| at.and_then(|at| at.try_into().ok());
    let table = Table::open(c"_leases", c"_leases_session");
    let estimate =
        |least| statistics::many(&Db::open(catalog::home()), c"_leases", &Which::Having("session"), false, least);
    // Each lease may lie on a page of its own. So leases are looked at one by one only if the index or the statistics
    // say that they may be few.
    let many = table.entries(&[], limits::MAX_COUNTED as usize + 1) > limits::MAX_COUNTED as usize;
    let count = many.then(|| estimate(0)).filter(|count| count.rows > 2 * limits::MAX_COUNTED);
    let count = match count {
        Some(count) => count,
        None => match few(&table)? {
            Ok(held) => return Ok(HeldCount { held, counted_at: time(Some(clock::timestamp())) }),
            Err(least) => estimate(least),
        },
    };
    Ok(HeldCount { held: count.rows, counted_at: time(count.at) })
}
