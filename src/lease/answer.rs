//! The answer to an acquire, inside the library and in SQL.

use crate::pg::row;
use crate::pg::text::Text;
use crate::session::holders::Holder;

/// The answer to an acquire of one resource.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub fence: Option<i64>,
    pub slot: i32,
    pub holder: Option<String>,
    pub reason: &'static str,
}

impl Answer {
    pub fn refused(reason: &'static str) -> Answer {
        Answer { reason, ..Answer::default() }
    }

    pub fn held_by(holder: &Holder) -> Answer {
        Answer { holder: Some(holder.consumer.clone()), ..Answer::refused("held") }
    }

    pub fn granted(reason: &'static str, slot: i32, fence: i64, holder: &str) -> Answer {
        Answer { fence: Some(fence), slot, holder: Some(holder.to_owned()), reason }
    }

    pub fn is_granted(&self) -> bool {
        self.fence.is_some()
    }
}

row::composite! {
    /// The answer to an acquire in SQL.
    LeaseAnswer = "eskit_lease.lease_answer" {
        granted: bool,
        fence: Option<i64>,
        slot: Option<i32>,
        holder: Option<Text>,
        trust_ms: Option<i32>,
        reason: Text,
    } added {
        revision: Option<i64>,
    }
}

impl LeaseAnswer {
    /// Makes the answer without a revision. That of `lock_acquire` stays so: its caller has no session to wait with.
    pub fn new(answer: Answer, trust_ms: Option<i32>) -> LeaseAnswer {
        let granted = answer.is_granted();
        LeaseAnswer {
            granted,
            fence: answer.fence,
            slot: granted.then_some(answer.slot),
            holder: answer.holder.map(Text),
            trust_ms: trust_ms.filter(|_| granted),
            reason: Text::from(answer.reason),
            revision: None,
        }
    }
}
