//! Refusals at a fenced table.

use super::report::{Report, fence_required, numbered, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum FencedError {
    FenceRequired {
        table: String,
        resource: String,
        partition: Option<i32>,
        partitions: Option<i32>,
        /// Whether this transaction had passed a check, and then gave the lease away.
        given_away: bool,
    },
    PartitionNull {
        table: String,
        column: String,
    },
    ColumnGone {
        table: String,
        column: String,
    },
    FencedAlready {
        table: String,
        resource: String,
        column: Option<String>,
    },
    FencedAbove(String),
    NotFenced {
        table: String,
    },
    FenceReplaceable {
        table: String,
        by: String,
    },
    TruncateFenced {
        table: String,
        column: String,
        resource: String,
    },
    NoFenceTrigger,
}

raised!(FencedError);

impl From<FencedError> for Report {
    fn from(error: FencedError) -> Report {
        use FencedError::*;
        match error {
            FenceRequired { table, resource, partition, partitions, given_away } => {
                required(&table, &resource, partition, partitions, given_away)
            }
            PartitionNull { table, column } => report(
                Code::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                format!("partition column \"{column}\" of fenced table \"{table}\" must not be null"),
            )
            .set_hint(
                "Give the row a partition; for one that is in the table, call eskit_lease.table_unfence() first.",
            ),
            ColumnGone { table, column } => report(
                Code::ERRCODE_UNDEFINED_COLUMN,
                format!(
                    "table \"{table}\" is fenced by its column \"{column}\", which is not there as an integer any more"
                ),
            )
            .set_hint("Call eskit_lease.table_unfence(), and fence it by the column that there is now."),
            FencedAlready { table, resource, column } => {
                let by_column = column.map(|column| format!(", by its column \"{column}\"")).unwrap_or_default();
                report(Code::ERRCODE_DUPLICATE_OBJECT, format!("table \"{table}\" is fenced already"))
                    .set_detail(format!("It is fenced by \"{resource}\"{by_column}."))
                    .set_hint("Call eskit_lease.table_unfence() first.")
            }
            FencedAbove(table) => report(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "triggers of table \"{table}\" are those of the partitioned table above, and not as table_fence() \
                     makes them"
                ),
            )
            .set_hint("Call eskit_lease.table_fence() for that table."),
            NotFenced { table } => report(Code::ERRCODE_UNDEFINED_OBJECT, format!("table \"{table}\" is not fenced"))
                .set_hint("The view fenced_tables has those that are. With missing_ok => true the answer is false."),
            FenceReplaceable { table, by } => report(
                Code::ERRCODE_WARNING,
                format!("triggers that fence table \"{table}\" may be replaced by others than its owner"),
            )
            .set_detail(format!("The privilege TRIGGER is granted to {by}."))
            .set_hint("Revoke TRIGGER on it, and on its partitions, if they are not to be trusted with it."),
            TruncateFenced { table, column, resource } => report(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("cannot truncate table \"{table}\", which is fenced by its column \"{column}\""),
            )
            .set_detail(format!("It would take the rows of all partitions of group \"{resource}\"."))
            .set_hint("Delete the rows, or call eskit_lease.table_unfence() first."),
            NoFenceTrigger => report(
                Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                "require_fence() is not used as table_fence() makes its triggers",
            )
            .set_hint("Call eskit_lease.table_fence()."),
        }
    }
}

/// Returns the refusal of a write that no passed check of a fence covers.
fn required(table: &str, resource: &str, partition: Option<i32>, partitions: Option<i32>, given_away: bool) -> Report {
    let of = partition.map_or(String::new(), |partition| format!("partition {partition} of "));
    let report = fence_required(format!("{of}table \"{table}\" is fenced by \"{resource}\""));
    if given_away {
        return report
            .set_detail("The pass of this transaction ended when it gave the lease away.")
            .set_hint("Write before the lease is given away, or check its new fence once it has been granted again.");
    }
    if let (Some(partition), Some(partitions)) = (partition, partitions)
        && !(0..partitions).contains(&partition)
    {
        return report.set_detail(format!("Group \"{resource}\" has {}.", numbered(partitions))).set_hint(
            "Give the row another partition; for one that is in the table, call eskit_lease.table_unfence() first, or \
             give the group more partitions with group_resize.",
        );
    }
    let name = format!("'{}'", resource.replace('\'', "''"));
    let or_commit = partition.map_or(String::new(), |partition| {
        format!(" or eskit_lease.cursor_commit({name}, {partition}, position, fence)")
    });
    report
        .set_detail("This transaction has not passed fence_check() for it, or has rolled that back to a savepoint.")
        .set_hint(format!("Call eskit_lease.fence_check({name}, fence){or_commit} first, in the same transaction."))
}
