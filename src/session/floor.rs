//! Where the line of a name begins: the places of its waiters, the members of a group, and the sessions that a consumer
//! has opened.
//!
//! Rows that are gone stay in the index while an old snapshot is open, and all of them stand before those that count.
//! So a line has a floor: **no row below it is there, or comes back**. It is in shared memory, as floors of work items
//! are (see [`crate::shmem::floors`]); a line without one is read from its beginning.
//!
//! * A row is made under a stripe of the line, and with a greater number than those before it: a place is drawn from a
//!   sequence, and a session is opened later than the last one of its name. So rows come into the index in the order of
//!   their numbers: before one that is there, all of lower numbers are.
//! * A row is gone for good when a transaction that has committed has deleted it. If a snapshot sees it deleted, it was
//!   in the index before that snapshot was taken, and so were all below it. A scan that begins later misses none of
//!   them.
//! * So a reader that steps over many rows takes a snapshot, scans from the floor on, and raises it to the first row
//!   that the snapshot does not see deleted. Nothing lowers a floor.
//! * The head of a line of places (see [`crate::lease::line::take_first_place`]) has a number below zero and is made
//!   without a stripe. No floor says anything of those.

mod by_session;

pub use by_session::BySession;

use crate::keys::fold_sha256;
use crate::pg::table::{Key, Moment, Sight, Stand, Table};
use crate::pg::{catalog, server};
use crate::shmem::floors::Lane;
use crate::shmem::shared;
use std::ffi::CStr;

/// Returns the lane of a name, by 63 bits of its SHA-256: a caller who found two names of one lane could keep a place
/// from its turn.
pub fn lane(table: &'static CStr, name: &str) -> Lane {
    let hash = fold_sha256(name);
    Lane {
        database: server::database(),
        table: catalog::needed(table).to_u32(),
        queue: (hash >> 32) as i32,
        // Below zero, as the heads of keys: there may be many.
        partition: hash as i32 | i32::MIN,
    }
}

/// Returns the floor of a line; 0 where it has none.
pub fn of(lane: Lane) -> i64 {
    shared().map_or(0, |shared| shared.floor_at(lane).max(0))
}

/// Raises the floor of a line, and says where it is then. `key`: of its rows from a number on; `column`: their number.
/// The table is in no walk.
pub fn raise<'a>(lane: Lane, table: &Table, column: usize, key: impl Fn(i64) -> Vec<Key<'a>>) -> i64 {
    let Ok(shared) = shared() else { return 0 };
    let start = shared.floor(lane);
    let mut floor = start.at.max(0);
    // Taken before the scan begins.
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
