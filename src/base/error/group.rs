//! Refusals of a group and its members.

use super::report::{Report, busy, invalid, numbered, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum GroupError {
    Partitions(i32),
    NoPartition { group: String, partition: i32, partitions: i32 },
    Assignor { name: String, known: String },
    Bound { name: String, queue: String, with_items: bool },
    Owned { name: String, why: String },
    Joining { group: String },
    NotMember { group: String },
    Overdue { group: String, partition: i32, fence: i64 },
}

raised!(GroupError);

impl From<GroupError> for Report {
    fn from(error: GroupError) -> Report {
        use GroupError::*;
        match error {
            Partitions(given) => {
                invalid("number of partitions must be greater than zero").set_detail(format!("{given} was given."))
            }
            NoPartition { group, partition, partitions } => {
                invalid(format!("group \"{group}\" has no partition {partition}"))
                    .set_detail(format!("It has {}.", numbered(partitions)))
            }
            Assignor { name, known } => {
                invalid(format!("unknown assignor \"{name}\"")).set_hint(format!("The assignors are {known}."))
            }
            Bound { name, queue, with_items } => {
                let report = report(Code::ERRCODE_OBJECT_IN_USE, format!("group \"{name}\" is in use"));
                if with_items {
                    report
                        .set_detail(format!("Queue \"{queue}\" is bound to it and has items."))
                        .set_hint("Finish the items first: their keys would belong elsewhere.")
                } else {
                    report.set_detail(format!("Queue \"{queue}\" is bound to it.")).set_hint("Drop the queue first.")
                }
            }
            Owned { name, why } => {
                report(Code::ERRCODE_OBJECT_IN_USE, format!("partitions of group \"{name}\" are owned"))
                    .set_detail(why)
                    .set_hint("Resize it with drain => true, which first has its members release their partitions.")
            }
            Joining { group } => {
                busy(format!("membership of group \"{group}\" is being changed in another transaction"))
                    .set_hint("Try again when that transaction has ended.")
            }
            NotMember { group } => report(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("session is not a member of group \"{group}\""),
            )
            .set_hint("Join the group with group_join."),
            Overdue { group, partition, fence } => {
                busy(format!("partition {partition} of group \"{group}\" was to be released by now"))
                    .set_detail(format!(
                        "The rebalance_timeout is over, and nothing new can be done under fence {fence}."
                    ))
                    .set_hint("Roll back, and give the partition back with group_release.")
            }
        }
    }
}
