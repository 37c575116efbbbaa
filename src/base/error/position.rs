//! Refusals of positions.

use super::report::{Report, invalid, raised, report};
use crate::base::limits;
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum PositionError {
    PositionsFull,
    PositionRaised { given: i64, most: i64 },
}

raised!(PositionError);

impl From<PositionError> for Report {
    fn from(error: PositionError) -> Report {
        use PositionError::*;
        match error {
            PositionsFull => report(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, "too many positions in one transaction")
                .set_detail(format!("There may be {} of them.", limits::MAX_POSITIONS))
                .set_hint("Write the rows in several transactions."),
            PositionRaised { given, most } => invalid("position to raise to is out of range")
                .set_detail(format!("{given} was given; the limits are 0 and {most}.")),
        }
    }
}
