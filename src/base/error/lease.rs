//! Refusals to a holder, or under a fence.

use super::report::{Report, busy, fence_lost, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum LeaseError {
    FenceLost {
        resource: String,
        fence: i64,
        why: String,
    },
    /// No row tells of the fence.
    FenceUnknown {
        resource: String,
        fence: i64,
    },
    InFlight {
        resource: String,
        fence: i64,
    },
    NewerThanSnapshot {
        resource: String,
        fence: i64,
    },
    NoGrace,
    /// A check in a statement of its own, outside a transaction block.
    CheckedAlone,
}

raised!(LeaseError);

impl From<LeaseError> for Report {
    fn from(error: LeaseError) -> Report {
        use LeaseError::*;
        match error {
            FenceLost { resource, fence, why } => {
                fence_lost(format!("fence {fence} of resource \"{resource}\" is no longer valid"))
                    .set_detail(why)
                    .set_hint(
                        "Stop this work and roll back: another session may hold the lease. Acquire it, or ask for the \
                         group's assignment, again before going on.",
                    )
            }
            FenceUnknown { resource, fence } => fence_lost(format!(
                "fence {fence} of resource \"{resource}\" is no longer valid"
            ))
            .set_detail("No such fence has been granted, or its grant was rolled back.")
            .set_hint(
                "Stop this work and roll back. Check that the name and the fence are those of one grant. If they \
                         are, acquire the lease again before going on.",
            ),
            InFlight { resource, fence } => busy(format!("lease of resource \"{resource}\" is changing hands"))
                .set_detail(format!(
                    "The end, the release or the take-over of fence {fence} is in progress in another transaction."
                ))
                .set_hint("Roll back and ask again: the lease may have been lost."),
            NewerThanSnapshot { resource, fence } => report(
                Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("lease of resource \"{resource}\" is newer than the snapshot of this transaction"),
            )
            .set_detail(format!("Fence {fence} was granted after what this transaction reads."))
            .set_hint("Begin the transaction after the lease has been granted, and retry it."),
            NoGrace => report(Code::ERRCODE_WRONG_OBJECT_TYPE, "partitions of a group are released without grace")
                .set_hint("Release a partition with group_release."),
            CheckedAlone => report(
                Code::ERRCODE_NO_ACTIVE_SQL_TRANSACTION,
                "fence_check() alone, outside a transaction block, protects nothing",
            )
            .set_detail("The check held until the end of its statement, which has written nothing.")
            .set_hint("Check and write in one transaction. This connection is not warned again."),
        }
    }
}
