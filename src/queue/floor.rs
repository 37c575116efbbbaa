//! Where the line of a name begins.
//!
//! Places that have been given up, or granted, stay in the index while an old snapshot is open, and all of them stand before those that count. So a line
//! has a floor: **no place below it is there, or comes back**. It is in shared memory, as floors of work items are (see
//! [`crate::liveness::floors`]); a line without one is read from its beginning.
//!
//! * A place is made under the stripe of its name. So the places of a line come into the index in the order of their numbers: before one that is
//!   there, all of lower numbers are.
//! * A place is gone for good when a transaction that has committed has deleted it. If a snapshot sees it deleted, it was in the index before that
//!   snapshot was taken, and so were all below it. A scan that begins later misses none of them.
//! * So whoever steps over many places takes a snapshot, scans from the floor on, and raises it to the first place that the snapshot does not see
//!   deleted. Nothing lowers a floor.
//! * The head of a line ([`super::take_first_place`]) has a number below zero and is made without a stripe. No floor says anything of those.

use super::{PLACE, table};
use crate::catalog;
use crate::keys::fold_sha256;
use crate::liveness::floors::Lane;
use crate::liveness::shared;
use crate::table::{Key, Moment, Sight, Stand};
use pgrx::pg_sys;

/// The lane of a name, by 63 bits of its SHA-256: one who could find two names of one lane could keep a place from its turn.
fn lane(resource: &str) -> Lane {
    let hash = fold_sha256(resource);
    Lane {
        // SAFETY: a plain read
        database: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        table: catalog::needed(c"_waiters").to_u32(),
        queue: (hash >> 32) as i32,
        // Below zero, as the heads of keys: there may be many.
        partition: hash as i32 | i32::MIN,
    }
}

/// The floor of a line; 0 where it has none.
pub fn of(resource: &str) -> i64 {
    shared().map_or(0, |shared| shared.floor_at(lane(resource)).max(0))
}

/// Raises the floor of a line, and says where it is then.
pub fn raise(resource: &str) -> i64 {
    let Ok(shared) = shared() else { return 0 };
    let lane = lane(resource);
    let start = shared.floor(lane);
    let mut floor = start.at.max(0);
    // Taken before the scan begins.
    let moment = Moment::now();
    let (table, key) = (table(), [Key::Text(resource), Key::From(floor)]);
    let mut walk = table.walk_versions(Sight::Latest, &key);
    loop {
        pgrx::check_for_interrupts!();
        let stand = walk.one_version();
        let place = || table.row().get::<i64>(PLACE);
        match stand {
            Stand::Stale if moment.has_gone(&table.row()) => floor = place().map_or(floor, |place| place + 1),
            Stand::Stale | Stand::Row(_) => {
                floor = place().unwrap_or(floor);
                break;
            }
            Stand::End => break,
        }
    }
    shared.raise(lane, start, floor);
    floor
}
