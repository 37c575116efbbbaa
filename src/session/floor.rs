//! Floors of lines. A line is the waiters for a resource, the members of a group, or the sessions that a consumer has
//! opened.
//!
//! Deleted rows stay in the index while an old snapshot is open, and they stand before all rows that count. So a line
//! has a floor: **no row below it exists or will exist**. Shared memory keeps the floor, as it keeps the floors of work
//! items (see [`crate::shmem::floors`]). A line without a floor is read from its beginning.
//!
//! * A row is made under a stripe of the line, with a greater number than all rows before it. The number of a place is
//!   drawn from a sequence; a session is opened later than the last one of its name. So rows enter the index in the
//!   order of their numbers: if a row is in the index, all lower ones are too.
//! * A row is gone for good once a committed transaction has deleted it. If a snapshot sees the row deleted, the row
//!   and all lower ones were in the index before the snapshot. A scan that begins after the snapshot misses none of
//!   them.
//! * So a reader that steps over many rows takes a snapshot and scans from the floor on. It raises the floor to the
//!   first row that the snapshot does not see deleted. Nothing lowers a floor.
//! * The place that goes to the head of a line (see [`crate::lease::line::take_first_place`]) has a number below zero
//!   and is made without a stripe. Floors do not cover these places.

mod by_session;

pub use by_session::BySession;

use crate::keys::fold_sha256;
use crate::pg::table::{Key, Moment, Sight, Stand, Table};
use crate::pg::{catalog, server};
use crate::shmem::floors::Lane;
use crate::shmem::shared;
use std::ffi::CStr;

/// Returns the lane of a name, from 63 bits of its SHA-256. With a weaker hash a caller could find two names of one
/// lane: the floor of one line could then hide a place in the other.
pub fn lane(table: &'static CStr, name: &str) -> Lane {
    let hash = fold_sha256(name);
    Lane {
        database: server::database(),
        table: catalog::needed(table).to_u32(),
        queue: (hash >> 32) as i32,
        // Negative, like the lanes of heads of keys: such lanes are many, and have a half of the entries to themselves.
        partition: hash as i32 | i32::MIN,
    }
}

/// Returns the floor of a line, or 0 if it has none.
pub fn of(lane: Lane) -> i64 {
    shared().map_or(0, |shared| shared.floor_at(lane).max(0))
}

/// Raises the floor of a line and returns it. `key` returns the key of the line's rows from a number on; `column` is
/// the column of that number. No walk of `table` may be open.
pub fn raise<'a>(lane: Lane, table: &Table, column: usize, key: impl Fn(i64) -> Vec<Key<'a>>) -> i64 {
    let Ok(shared) = shared() else { return 0 };
    let start = shared.floor(lane);
    let mut floor = start.at.max(0);
    // The snapshot must be older than the scan.
    let (moment, key) = (Moment::now(), key(floor));
    let mut walk = table.walk_versions(Sight::Latest, &key);
    loop {
        pgrx::check_for_interrupts!();
        let stand = walk.one_version();
        let number = || table.row().required::<i64>(column);
        match stand {
            Stand::Stale if moment.has_gone(&table.row()) => floor = number() + 1,
            Stand::Stale | Stand::Row(_) => {
                floor = number();
                break;
            }
            Stand::End => break,
        }
    }
    shared.raise(lane, start, floor);
    floor
}
