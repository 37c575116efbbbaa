//! Numbers of items: their ids and places. A database never gives a number twice, whatever part of its history is lost.
//!
//! A sequence is only as current as the WAL that was replayed. If the last WAL is missing, the sequence repeats
//! numbers. That happens at a promotion, a recovery to a point in time, or a crash before a flush. So this sequence is
//! raised, as that of fences is, above every number that an older history can have given. Numbers stay below 2^53,
//! exact in JavaScript.

use crate::call::Call;
use crate::lease::fence;

pub fn next(call: &Call) -> i64 {
    fence::raise(call);
    fence::draw(call, c"_item_seq", &call.database.items)
}
