//! A pass by a waiting call: where PostgreSQL has no process for the worker of a database, a session_wait there is
//! woken and does its work.
//!
//! What it grants is seen once its transaction has ended, so only a call that ends it by its answer does this, and then
//! answers at once. It sees what is committed, as every statement of ours does, whatever the age of its own snapshot;
//! at READ COMMITTED, so that no conflict is found that is not its client's.

use super::notify;
use super::retention::{self, Progress};
use super::sweep::{self, waited::Looked};
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::pg::statement::ends_with_answer;
use crate::pg::{catalog, clock, transaction};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// What a pass may read or write.
const TOUCHED: [&CStr; 22] = [
    c"fence_seq",
    c"_refence",
    c"_sessions",
    c"_successions",
    c"_deaths",
    c"_declarations",
    c"_bridges",
    c"_leases",
    c"_history",
    c"_waiters",
    c"_groups",
    c"_members",
    c"_members_place_seq",
    c"_partitions",
    c"_cursors",
    c"_heads",
    c"_queues",
    c"_items",
    c"_later",
    c"_claims",
    c"_item_heads",
    c"_dead_items",
];

/// Whether this call may do a pass.
pub fn is_able() -> bool {
    !transaction::is_read_only() && transaction::is_read_committed() && ends_with_answer()
}

/// Does a pass if one is asked for, and no other call has taken that on.
pub fn pass_if_asked(call: &Call) -> Result<bool> {
    if !call.database.asked.swap(false, Ordering::AcqRel) {
        return Ok(false);
    }
    // Of the extension as the worker does: else sessions of one made meanwhile would be taken for those of one that was
    // dropped. A wait is a heartbeat. It neither waits nor fails because another transaction has something locked: then
    // the pass is done later, by this call's next or another.
    if !catalog::lock_extension_soon() || !catalog::try_lock_all(&TOUCHED) {
        call.database.asked.store(true, Ordering::Release);
        return Ok(false);
    }
    let mut done = sweep::pass(call, limits::MAX_HAND_OVER, true, &mut Looked::default())?;
    let now = clock::now();
    if retention::is_time(call.database, now, done.looked_through) {
        retention::retire(call, now, limits::MAX_HAND_OVER, done.looked_through, &mut Progress::from_the_oldest());
    }
    // Of its own grants the ring is told at the end of this transaction, as of any other's.
    done.changed.retain(|_, granted| granted.is_none());
    if !done.changed.is_empty() || !done.items.is_empty() {
        notify::send(call, &done);
    }
    Ok(true)
}
