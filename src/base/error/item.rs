//! Refusals of work items and their queues.

use super::report::{Report, busy, count, fence_lost, invalid, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum ItemError {
    QueueExists { name: String },
    Ordering(String),
    Payload { bytes: usize, most: usize, as_text: bool },
    Keys { keys: usize, payloads: usize },
    ClaimLost { fence: i64, why: String },
    ClaimInFlight { fence: i64 },
    ItemInFlight { id: i64 },
}

raised!(ItemError);

impl From<ItemError> for Report {
    fn from(error: ItemError) -> Report {
        use ItemError::*;
        match error {
            QueueExists { name } => report(Code::ERRCODE_DUPLICATE_OBJECT, format!("queue \"{name}\" already exists")),
            Ordering(name) => {
                invalid(format!("unknown ordering \"{name}\"")).set_hint("The orderings are none, fifo and key.")
            }
            Payload { bytes, most, as_text } => {
                let as_text = if as_text { " as text" } else { "" };
                report(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, "payload is too large")
                    .set_detail(format!("It has {bytes} bytes{as_text}; the limit is {most}."))
            }
            Keys { keys, payloads } => invalid("numbers of payloads and keys differ").set_detail(format!(
                "{} and {} were given.",
                count(payloads, "payload"),
                count(keys, "key")
            )),
            ClaimLost { fence, why } => fence_lost(format!("claim under fence {fence} is no longer valid"))
                .set_detail(why)
                .set_hint("Stop this work and roll back: another session may have the item, or have done it."),
            ClaimInFlight { fence } => busy(format!("session of the claim under fence {fence} is just ending"))
                .set_hint("Roll back and ask again."),
            ItemInFlight { id } => {
                busy(format!("item {id} is being changed in another transaction")).set_hint("Roll back and ask again.")
            }
        }
    }
}
