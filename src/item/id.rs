//! Numbers of items, their ids and places: none is given twice in a database, whatever of its history is lost.
//!
//! A sequence is as far as the log that has been replayed. A standby that is promoted without the last of it, a
//! recovery to a point in time, or a crash before it was flushed, would give again what has been given since. So this
//! one is raised as that of fences is, above all that any older history can have given. They stay below 2^53, exact in
//! JavaScript.

use crate::call::Call;
use crate::lease::fence;
use crate::pg::spi;

pub fn next(call: &Call) -> i64 {
    fence::raise(call);
    let number = spi::next(c"_item_seq");
    fence::hold_back(&call.database.items, number);
    number
}
