//! Refusals of the cursor of a partition.

use super::report::{Report, full, invalid, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

const READ_AGAIN: &str = "Another transaction under the same fence has moved it. Roll back, read the position again \
     in a new transaction, and begin there.";

#[derive(Debug)]
pub enum CursorError {
    Position(i64),
    CursorNewer { group: String, partition: i32 },
    CursorElsewhere { group: String, partition: i32, at: i64, expected: i64 },
    AcksFull { group: String, partition: i32, most: i64 },
}

raised!(CursorError);

impl From<CursorError> for Report {
    fn from(error: CursorError) -> Report {
        use CursorError::*;
        let moved = |message| report(Code::ERRCODE_T_R_SERIALIZATION_FAILURE, message).set_hint(READ_AGAIN);
        match error {
            Position(given) => {
                let report = invalid("position is out of range")
                    .set_detail(format!("{given} was given; the limits are 1 and {}.", i64::MAX - 1));
                if given <= 0 {
                    report.set_hint("For a stream that begins at 0, count one more: a cursor at 0 has seen nothing.")
                } else {
                    report
                }
            }
            CursorNewer { group, partition } => moved(format!(
                "cursor of partition {partition} of group \"{group}\" has been moved since this transaction's snapshot"
            )),
            CursorElsewhere { group, partition, at, expected } => {
                moved(format!("cursor of partition {partition} of group \"{group}\" is at {at}, and not at {expected}"))
            }
            AcksFull { group, partition, most } => full(format!(
                "too many acknowledgements beyond the cursor of partition {partition} of group \"{group}\""
            ))
            .set_detail(format!("There may be {most} ranges of them."))
            .set_hint("Acknowledge the oldest positions first."),
        }
    }
}
