//! Refusals of a run-once key and its attempts.

use super::report::{Report, busy, fence_lost, invalid, raised, report};
use crate::base::limits;
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum ExecutionError {
    AttemptLost { key: String, fence: i64, why: String },
    AttemptInFlight { key: String },
    AttemptNewer { key: String },
    ResultTooLarge { key: String, length: usize },
    Outcome(String),
    NoResult(String),
}

raised!(ExecutionError);

impl From<ExecutionError> for Report {
    fn from(error: ExecutionError) -> Report {
        use ExecutionError::*;
        match error {
            AttemptLost { key, fence, why } => {
                fence_lost(format!("fence {fence} of execution \"{key}\" is no longer valid")).set_detail(why).set_hint(
                    "Stop this work and roll back: the attempt is over. execution_begin tells what stands, or \
                         begins another.",
                )
            }
            AttemptInFlight { key } => busy(format!("execution \"{key}\" is being changed in another transaction"))
                .set_hint("Try again when that transaction has ended."),
            AttemptNewer { key } => report(
                Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("execution \"{key}\" is newer than the snapshot of this transaction"),
            )
            .set_detail("What the attempt before has left is not part of what this transaction reads.")
            .set_hint("Retry the transaction."),
            ResultTooLarge { key, length } => {
                report(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, format!("result of execution \"{key}\" is too large"))
                    .set_detail(format!("It is {length} bytes long as text; the limit is {}.", limits::MAX_RESULT))
                    .set_hint("Keep the result elsewhere, and where it is here.")
            }
            Outcome(name) => {
                invalid(format!("unknown outcome \"{name}\"")).set_hint("The outcomes are done, failed and retry.")
            }
            NoResult(name) => {
                invalid(format!("outcome \"{name}\" has no result")).set_hint("Give a result with the outcome done.")
            }
        }
    }
}
