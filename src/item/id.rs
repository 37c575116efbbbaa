//! Ids of items: none is given twice in a database, whatever of its history is lost.
//!
//! A sequence is as far as the log that has been replayed. A standby that is promoted without the last of it, or a recovery to a point in
//! time, would give again what its former self has given since. Both begin a new timeline, and each timeline has ids of its own, above those
//! of the ones before.

use crate::call::Call;
use crate::grant::timeline;
use crate::guard::{Guard, Mode};
use crate::spi::{self, Statement, Value};
use pgrx::pg_sys::INT8OID;

static RAISE: Statement = Statement::tidies(include_str!("../../sql/query/item/raise.sql"), &[INT8OID]);

/// Ids of one timeline. Below 2^53, exact in JavaScript, up to timeline 8192.
const OF_TIMELINE: i64 = 1 << 40;

pub fn next(call: &Call) -> i64 {
    let below = i64::from(timeline().max(1) - 1) * OF_TIMELINE;
    loop {
        let id = spi::next(c"_item_seq");
        if id > below {
            return id;
        }
        // Whoever draws from it meanwhile does not keep what it gets.
        Guard::Raise.lock(Mode::Exclusive);
        call.db().execute(&RAISE, vec![Value::Long(below)]);
        Guard::Raise.unlock(Mode::Exclusive);
    }
}
