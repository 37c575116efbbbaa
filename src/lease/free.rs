//! Freeing: a lease loses its owner, and its row keeps the last fence.

use super::row::{Leases, Seat};
use crate::call::Call;
use crate::pg::spi::{self, Statement, Value};
use pgrx::pg_sys::{BOOLOID, INT4ARRAYOID, ItemPointerData, TEXTARRAYOID};

static RELEASE: Statement =
    Statement::writes(include_str!("../../sql/query/lease/release.sql"), &[TEXTARRAYOID, INT4ARRAYOID, BOOLOID]);

/// Marks the rows of leases, which the caller has locked, as released, or as taken from sessions that had expired.
pub fn free(call: &Call, seats: &[(Seat, ItemPointerData)], expired: bool) {
    if seats.is_empty() {
        return;
    }
    let leases = Leases::open();
    if leases.is_plain() {
        for ((resource, slot), tid) in seats {
            // There may be 100,000 seats. Nothing else in this loop checks for a cancel.
            pgrx::check_for_interrupts!();
            leases.free(resource, *slot, *tid, expired);
        }
        spi::durably();
    } else {
        let (resources, slots): (Vec<&str>, Vec<i32>) =
            seats.iter().map(|((name, slot), _)| (name.as_str(), *slot)).unzip();
        call.db().execute(&RELEASE, vec![Value::Texts(resources), Value::Ints(&slots), Value::Bool(expired)]);
    }
}
