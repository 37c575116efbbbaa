//! How many rows of a table have a value: counted if they are few, else taken from PostgreSQL's own statistics. So the
//! cost has a bound, however many rows there are, and no writer pays for a counter.

use super::spi::{Db, Statement, Value};
use super::table::{Key, Sight, Stand, Table};
use super::{catalog, clock};
use crate::base::limits;
use pgrx::pg_sys::{OIDOID, TEXTOID};
use std::ffi::CStr;

/// The statistics of a table and a column of it. The number of live tuples follows each transaction that ends, a few
/// seconds late.
static STATISTICS: Statement = Statement::reads(
    "SELECT c.reltuples::double precision, pg_stat_get_live_tuples(c.oid),
            greatest(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)),
            1 - s.null_frac::double precision,
            (SELECT f.share::double precision
             FROM unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS f (value, share)
             WHERE f.value = $3)
     FROM pg_class AS c
     LEFT JOIN pg_stats AS s
         ON s.schemaname = 'eskit_lease' AND s.tablename = c.relname AND s.attname = $2 AND NOT s.inherited
     WHERE c.oid = $1",
    &[OIDOID, TEXTOID, TEXTOID],
);

/// How many rows there are, and when that was so, in microseconds since 2000; `None` if that time is not known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Count {
    pub rows: i64,
    pub at: Option<i64>,
}

/// Which rows of a table count: the rows with this value in a column, or all rows in which the column is not null.
pub enum Which<'a> {
    With(&'static str, &'a str),
    Having(&'static str),
}

struct Statistics {
    /// Rows at the last VACUUM or ANALYZE.
    rows: f64,
    /// Rows now.
    live: i64,
    analyzed: Option<i64>,
    /// The share of the rows that count, at the last ANALYZE.
    share: Option<f64>,
}

impl Statistics {
    fn of(db: &Db, table: &'static CStr, which: &Which) -> Statistics {
        let (column, value) = match which {
            Which::With(column, value) => (column, Some(*value)),
            Which::Having(column) => (column, None),
        };
        let values = vec![Value::Oid(catalog::needed(table).to_u32()), Value::Text(column), Value::MaybeText(value)];
        let known = db.one(&STATISTICS, values, |row| Statistics {
            rows: row.get(1).unwrap_or(0.0),
            live: row.get(2).unwrap_or(0),
            analyzed: row.get(3),
            share: row.get(if value.is_some() { 5 } else { 4 }),
        });
        match which {
            // Before the first ANALYZE this assumes that all rows have a value.
            Which::Having(_) if known.share.is_none() => {
                Statistics { rows: known.live as f64, share: Some(1.0), analyzed: None, ..known }
            }
            _ => known,
        }
    }

    /// Estimates how many rows count; `least` have been counted. `all`: every row of the table counts.
    fn estimate(&self, all: bool, least: i64, now: i64) -> Count {
        let more = |rows: f64| (rows as i64).max(least);
        // After a crash PostgreSQL knows of no rows until the next ANALYZE.
        let rows = if self.live > 0 { self.live as f64 } else { self.rows };
        match self.share {
            _ if all && self.live >= least.max(1) => Count { rows: self.live, at: Some(now) },
            Some(share) => Count { rows: more(rows * share), at: self.analyzed },
            // ANALYZE found none, or few. All rows since then may be such.
            None => Count { rows: more(rows - self.rows.max(0.0)), at: None },
        }
    }
}

/// Returns how many rows of a table have this key, or these first columns of one. Beyond [`limits::MAX_COUNTED`] rows,
/// or beyond [`limits::MAX_PASSED`] versions that do not count, gives up and returns the rows so far as an error.
/// Deleted rows leave such versions while an old snapshot is open.
pub fn few(table: &Table, key: &[Key]) -> std::result::Result<i64, i64> {
    let mut walk = table.walk_versions(Sight::Caller, key);
    let (mut rows, mut passed) = (0, 0);
    loop {
        match walk.one_version() {
            Stand::Row(_) => rows += 1,
            Stand::Stale => passed += 1,
            Stand::End => return Ok(rows),
        }
        if rows > limits::MAX_COUNTED || passed > limits::MAX_PASSED {
            return Err(rows);
        }
    }
}

/// Estimates how many rows count, after a count has been given up at `least` rows (see [`few`]).
pub fn many(db: &Db, table: &'static CStr, which: &Which, all: bool, least: i64) -> Count {
    Statistics::of(db, table, which).estimate(all, least, clock::timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Statistics = Statistics { rows: 1e6, live: 1_200_000, analyzed: Some(5), share: Some(0.25) };

    #[test]
    fn an_estimate_says_when_it_was_right() {
        assert_eq!(KNOWN.estimate(false, 10_001, 9), Count { rows: 300_000, at: Some(5) });
        assert_eq!(KNOWN.estimate(true, 10_001, 9), Count { rows: 1_200_000, at: Some(9) });
        // ANALYZE has found none, so all rows that came later may count. The last one was never analyzed.
        let unknown = Statistics { share: None, ..KNOWN };
        assert_eq!(unknown.estimate(false, 10_001, 9), Count { rows: 200_000, at: None });
        assert_eq!(
            Statistics { live: 900_000, ..unknown }.estimate(false, 10_001, 9),
            Count { rows: 10_001, at: None }
        );
        assert_eq!(
            Statistics { rows: -1.0, ..unknown }.estimate(false, 10_001, 9),
            Count { rows: 1_200_000, at: None }
        );
        // First, a crash has lost the statistics. Second, the last ANALYZE found fewer rows than can be counted.
        assert_eq!(
            Statistics { live: 0, analyzed: None, ..KNOWN }.estimate(true, 10_001, 9),
            Count { rows: 250_000, at: None }
        );
        let rows = |rows| Statistics { rows, live: 0, ..KNOWN };
        assert_eq!(rows(400.0).estimate(false, 10_001, 9), Count { rows: 10_001, at: Some(5) });
        // The count was given up for old versions, before it had found many rows.
        assert_eq!(rows(400.0).estimate(false, 7, 9), Count { rows: 100, at: Some(5) });
        assert_eq!(rows(0.0).estimate(false, 7, 9), Count { rows: 7, at: Some(5) });
    }
}
