//! A pass by a waiting call. If PostgreSQL has no process for the worker of a database, a session_wait in that database
//! is woken and does the worker's work.
//!
//! Other sessions see what a pass grants once its transaction has ended. So only a call whose answer ends the
//! transaction does a pass, and then it answers at once. A pass sees what is committed, whatever the age of the call's
//! own snapshot, as every statement of ours does. A pass runs at READ COMMITTED only, where it meets no serialization
//! conflict that its client did not cause.

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

/// The tables and sequences that a pass may read or write.
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

/// Returns whether this call may do a pass.
pub fn is_able() -> bool {
    !transaction::is_read_only() && transaction::is_read_committed() && ends_with_answer()
}

/// Does a pass if one is asked for and no other call does it.
pub fn pass_if_asked(call: &Call) -> Result<bool> {
    if !call.database.asked.swap(false, Ordering::AcqRel) {
        return Ok(false);
    }
    // As the worker does, this locks the extension. Otherwise the pass could take sessions of an extension that is
    // created meanwhile for those of a dropped one. A wait is a heartbeat: it must not wait or fail because another
    // transaction has locked a table. Then a later call does the pass.
    if !catalog::lock_extension_soon() || !catalog::try_lock_all(&TOUCHED) {
        call.database.asked.store(true, Ordering::Release);
        return Ok(false);
    }
    let mut done = sweep::pass(call, limits::MAX_HAND_OVER, true, &mut Looked::default())?;
    let now = clock::now();
    if retention::is_time(call.database, now, done.looked_through) {
        retention::retire(call, now, limits::MAX_HAND_OVER, done.looked_through, &mut Progress::from_the_oldest());
    }
    // The end of this transaction posts its own grants to the ring, as for any other transaction.
    done.changed.retain(|_, granted| granted.is_none());
    if notify::has_news(call.database, &done) {
        notify::send(call, &done);
    }
    Ok(true)
}
