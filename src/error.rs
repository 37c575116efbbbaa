//! Every mistake and refusal that raises, and what is warned of: its SQLSTATE, message, detail and hint in one place. Contention is no
//! error: verbs that ask answer it with a reason.

mod own;

use crate::group::assign::Assignor;
use crate::interval;
use crate::settings;
use crate::version::VERSION;
use own::{FENCE_LOST, FENCE_REQUIRED, raise_own};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::PgSqlErrorCode as Code;

pub type Result<T> = std::result::Result<T, ErrorReport>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("eskit_lease must be loaded via shared_preload_libraries")]
    NotPreloaded,
    #[error("extension eskit_lease is not in this database any more")]
    NoExtension,
    #[error("the schema of extension eskit_lease has been renamed")]
    SchemaRenamed,
    #[error("shared memory is that of another build of eskit_lease")]
    AnotherPreloaded,
    #[error("library of eskit_lease is of version {VERSION}, before {0}")]
    LibraryOlder(String),
    #[error(
        "objects of extension eskit_lease in this database are not those that its library of version {VERSION} needs"
    )]
    Unserved(String),
    #[error("cannot use sessions and leases during recovery")]
    Recovery,
    #[error("cannot execute {0} in a read-only transaction")]
    ReadOnly(&'static str),
    #[error("{0} must not be null")]
    Null(&'static str),
    #[error("{what} must be between 1 and {max} bytes long", max = crate::MAX_NAME)]
    Name { what: &'static str, length: usize },
    #[error("{what} is out of range")]
    Interval { what: &'static str, given_ms: i128, min_ms: i64, max_ms: i64 },
    #[error("number of {what} is out of range")]
    Number { what: &'static str, given: i64, min: i64, max: i64 },
    #[error("{argument} is out of range")]
    Argument { argument: &'static str, given: i64, min: i64, max: i64 },
    #[error("number of partitions must be greater than zero")]
    Partitions(i32),
    #[error("{what} must not be given twice")]
    Twice { what: &'static str, given: String },
    #[error("permission denied for session of role {owner}")]
    Foreign { owner: String, resource: Option<String> },
    #[error("attach_grace is given without attach")]
    NotAttached,
    #[error("too many sessions")]
    SessionsFull,
    #[error("too many sessions of role \"{role}\"")]
    RoleFull { role: String, most: u32 },
    #[error("too many databases with sessions")]
    DatabasesFull,
    #[error("too many places in queues")]
    PlacesFull,
    #[error("too many bridges")]
    BridgesFull,
    #[error("cannot PREPARE a transaction that has attached a session to its connection")]
    AttachPrepared,
    #[error("fence {fence} of resource \"{resource}\" is no longer valid")]
    FenceLost { resource: String, fence: i64, why: String },
    #[error("lease of resource \"{resource}\" is changing hands")]
    InFlight { resource: String, fence: i64 },
    #[error("could not share {to}, to which \"{resource}\" is bridged")]
    BridgeClosed { resource: String, to: String, why: String, hint: &'static str },
    #[error("table \"{table}\" cannot be bridged to")]
    Unbridgeable { table: String, why: String, hint: &'static str },
    #[error("column \"{column}\" has no time zone, and is read as UTC")]
    ReadAsUtc { column: String },
    #[error("table \"{table}\" has no row of key \"{key}\"")]
    NoRow { table: String, key: String },
    #[error("{to} is bridged already")]
    BridgedAlready { to: String, resource: String },
    #[error("could not lock table \"{table}\"")]
    TableLocked { table: String },
    #[error("partition {partition} of group \"{group}\" was to be released by now")]
    Overdue { group: String, partition: i32, fence: i64 },
    #[error("lease of resource \"{resource}\" is newer than the snapshot of this transaction")]
    NewerThanSnapshot { resource: String, fence: i64 },
    #[error("cursor of partition {partition} of group \"{group}\" has been moved since this transaction's snapshot")]
    CursorNewer { group: String, partition: i32 },
    #[error("cursor of partition {partition} of group \"{group}\" is at {at}, and not at {expected}")]
    CursorElsewhere { group: String, partition: i32, at: i64, expected: i64 },
    #[error("{is} \"{name}\" already exists")]
    Declared { name: String, is: &'static str },
    #[error("resource \"{name}\" is in use")]
    NameInUse { name: String, why: String },
    #[error("{kind} \"{name}\" is in use")]
    InUse { kind: &'static str, name: String, why: String },
    #[error("group \"{name}\" is in use")]
    Bound { name: String, queue: String, with_items: bool },
    #[error("partitions of group \"{name}\" are owned")]
    Owned { name: String, why: String },
    #[error("name \"{name}\" is being changed in another transaction")]
    BeingDeclared { name: String },
    #[error("\"{name}\" is a {is}, not a {wanted}")]
    WrongKind { name: String, is: &'static str, wanted: &'static str },
    #[error("{kind} \"{name}\" does not exist")]
    Unknown { kind: &'static str, name: String },
    #[error("must be owner of {kind} \"{name}\"")]
    NotOwner { kind: &'static str, name: String, owner: String },
    #[error("unknown assignor \"{0}\"")]
    Assignor(String),
    #[error("group \"{group}\" has no partition {partition}")]
    NoPartition { group: String, partition: i32, partitions: i32 },
    #[error("position is out of range")]
    Position(i64),
    #[error("too many acknowledgements beyond the cursor of partition {partition} of group \"{group}\"")]
    AcksFull { group: String, partition: i32, most: i64 },
    #[error("partitions of a group are released without grace")]
    NoGrace { name: String },
    #[error("session {}", how_it_stands(.0))]
    SessionEnded(&'static str),
    #[error("membership of group \"{group}\" is being changed in another transaction")]
    Joining { group: String },
    #[error("session is not a member of group \"{group}\"")]
    NotMember { group: String },
    #[error("queue \"{name}\" already exists")]
    QueueExists { name: String },
    #[error("unknown ordering \"{0}\"")]
    Ordering(String),
    #[error("payload is too large")]
    Payload { bytes: usize, most: usize, as_text: bool },
    #[error("numbers of payloads and keys differ")]
    Keys { keys: usize, payloads: usize },
    #[error("numbers of partitions and fences differ")]
    Fences { fences: usize, partitions: usize },
    #[error("{0} must be finite")]
    Infinite(&'static str),
    #[error("claim under fence {fence} is no longer valid")]
    ClaimLost { fence: i64, why: String },
    #[error("session of the claim under fence {fence} is just ending")]
    ClaimInFlight { fence: i64 },
    #[error("item {id} is being changed in another transaction")]
    ItemInFlight { id: i64 },
    #[error("fence {fence} of execution \"{key}\" is no longer valid")]
    AttemptLost { key: String, fence: i64, why: String },
    #[error("execution \"{key}\" is being changed in another transaction")]
    AttemptInFlight { key: String },
    #[error("execution \"{key}\" is newer than the snapshot of this transaction")]
    AttemptNewer { key: String },
    #[error("result of execution \"{key}\" is too large")]
    ResultTooLarge { key: String, length: usize },
    #[error("unknown outcome \"{0}\"")]
    Outcome(String),
    #[error("outcome \"{0}\" has no result")]
    NoResult(String),
    #[error("too many positions in one transaction")]
    PositionsFull,
    #[error("positions cannot be raised above this one")]
    PositionRaised { given: i64, most: i64 },
    #[error("connection to client lost")]
    ClientGone,
    #[error("{of} \"{table}\" is fenced by \"{resource}\"", of = what_is_fenced(*.partition))]
    FenceRequired { table: String, resource: String, partition: Option<i32>, partitions: Option<i32>, given_away: bool },
    #[error("partition column \"{column}\" of fenced table \"{table}\" must not be null")]
    PartitionNull { table: String, column: String },
    #[error("column \"{column}\" of relation \"{table}\" does not exist")]
    NoColumn { table: String, column: String },
    #[error("table \"{table}\" is fenced by its column \"{column}\", which is not there as an integer any more")]
    ColumnGone { table: String, column: String },
    #[error("column \"{column}\" of relation \"{table}\" cannot tell the partition")]
    PartitionColumn { table: String, column: String, why: String },
    #[error("table with OID {0} does not exist")]
    NoTable(u32),
    #[error("\"{table}\" cannot be fenced")]
    Unfenceable { table: String, why: &'static str },
    #[error("triggers of table \"{0}\" are those of the partitioned table above, and not as fence_table() makes them")]
    FencedAbove(String),
    #[error("triggers that fence table \"{table}\" may be replaced by others than its owner")]
    FenceReplaceable { table: String, by: String },
    #[error("table \"{table}\" is fenced already")]
    FencedAlready { table: String, resource: String, column: Option<String> },
    #[error("cannot truncate table \"{table}\", which is fenced by its column \"{column}\"")]
    TruncateFenced { table: String, column: String, resource: String },
    #[error("require_fence() is not used as fence_table() makes its triggers")]
    NoFenceTrigger,
}

fn what_is_fenced(partition: Option<i32>) -> String {
    partition.map_or("table".to_owned(), |partition| format!("partition {partition} of table"))
}

/// How a session stands, by the reason of a refusal.
fn how_it_stands(reason: &str) -> &'static str {
    match reason {
        "closing" => "is being closed",
        "draining" => "is draining",
        "sessions_full" => "has found no place since the server was started",
        "unknown_session" => "does not exist",
        _ => "has ended",
    }
}

/// As many of something, as they are counted.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn partitions(number: i32) -> String {
    match number {
        1 => "1 partition, which is number 0".to_owned(),
        _ => format!("{number} partitions, numbered from 0 to {}", number - 1),
    }
}

/// A text as an SQL literal, to be shown.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Error::NotPreloaded
            | Error::AnotherPreloaded
            | Error::LibraryOlder(_)
            | Error::Unserved(_)
            | Error::SchemaRenamed => Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Error::Recovery | Error::ReadOnly(_) => Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
            Error::Null(_) | Error::PartitionNull { .. } => Code::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            Error::Name { .. }
            | Error::Interval { .. }
            | Error::Number { .. }
            | Error::Argument { .. }
            | Error::PositionRaised { .. }
            | Error::Partitions(_)
            | Error::NoPartition { .. }
            | Error::Assignor(_)
            | Error::Outcome(_)
            | Error::NoResult(_)
            | Error::Twice { .. }
            | Error::Ordering(_)
            | Error::Keys { .. }
            | Error::Fences { .. }
            | Error::Infinite(_)
            | Error::NotAttached
            | Error::Position(_) => Code::ERRCODE_INVALID_PARAMETER_VALUE,
            Error::Foreign { .. } | Error::NotOwner { .. } => Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
            Error::SessionsFull
            | Error::RoleFull { .. }
            | Error::DatabasesFull
            | Error::PlacesFull
            | Error::BridgesFull
            | Error::AcksFull { .. } => Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            Error::Declared { .. }
            | Error::NameInUse { .. }
            | Error::FencedAlready { .. }
            | Error::BridgedAlready { .. }
            | Error::QueueExists { .. } => Code::ERRCODE_DUPLICATE_OBJECT,
            Error::InUse { .. } | Error::Bound { .. } | Error::Owned { .. } => Code::ERRCODE_OBJECT_IN_USE,
            Error::WrongKind { .. }
            | Error::NoGrace { .. }
            | Error::Unfenceable { .. }
            | Error::Unbridgeable { .. } => Code::ERRCODE_WRONG_OBJECT_TYPE,
            Error::NoRow { .. } => Code::ERRCODE_NO_DATA_FOUND,
            Error::Unknown { .. } | Error::NoExtension => Code::ERRCODE_UNDEFINED_OBJECT,
            Error::SessionEnded(_) | Error::NotMember { .. } | Error::FencedAbove(_) => {
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE
            }
            Error::AttachPrepared => Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            // raise_own() makes these LF001 and LF002
            Error::FenceLost { .. }
            | Error::ClaimLost { .. }
            | Error::AttemptLost { .. }
            | Error::FenceRequired { .. } => Code::ERRCODE_RAISE_EXCEPTION,
            Error::NoColumn { .. } | Error::ColumnGone { .. } => Code::ERRCODE_UNDEFINED_COLUMN,
            Error::PartitionColumn { .. } => Code::ERRCODE_DATATYPE_MISMATCH,
            Error::FenceReplaceable { .. } | Error::ReadAsUtc { .. } => Code::ERRCODE_WARNING,
            Error::NoTable(_) => Code::ERRCODE_UNDEFINED_TABLE,
            Error::TruncateFenced { .. } => Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            Error::NoFenceTrigger => Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            Error::InFlight { .. }
            | Error::BridgeClosed { .. }
            | Error::TableLocked { .. }
            | Error::Overdue { .. }
            | Error::BeingDeclared { .. }
            | Error::Joining { .. }
            | Error::ClaimInFlight { .. }
            | Error::ItemInFlight { .. }
            | Error::AttemptInFlight { .. } => Code::ERRCODE_LOCK_NOT_AVAILABLE,
            Error::Payload { .. } | Error::ResultTooLarge { .. } => Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            Error::NewerThanSnapshot { .. }
            | Error::AttemptNewer { .. }
            | Error::CursorNewer { .. }
            | Error::CursorElsewhere { .. } => Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
            Error::PositionsFull => Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            Error::ClientGone => Code::ERRCODE_CONNECTION_FAILURE,
        }
    }

    fn detail(&self) -> Option<String> {
        Some(match self {
            Error::AnotherPreloaded => {
                format!("The server was started with it. This is the library of version {VERSION}, from another file.")
            }
            Error::Unserved(why) => why.clone(),
            Error::Name { what, length } => format!("The {what} given is {length} bytes long."),
            Error::Interval { given_ms, min_ms, max_ms, .. } => {
                let [given, min, max] = [*given_ms, (*min_ms).into(), (*max_ms).into()].map(interval::told);
                format!("{given} was given; the limits are {min} and {max}.")
            }
            Error::Number { given, min, max, .. } | Error::Argument { given, min, max, .. } => {
                format!("{given} was given; the limits are {min} and {max}.")
            }
            Error::Partitions(given) => format!("{given} was given."),
            Error::Twice { given, .. } => format!("\"{given}\" was given more than once."),
            Error::SessionsFull => format!("eskit_lease.max_sessions is {}.", settings::MAX_SESSIONS.get()),
            Error::RoleFull { most, .. } => format!("eskit_lease.max_sessions_per_role is {most}."),
            Error::DatabasesFull => format!("eskit_lease.max_databases is {}.", settings::MAX_DATABASES.get()),
            Error::PlacesFull => {
                format!("The session waits for {} resources.", crate::queue::MAX_PLACES)
            }
            Error::BridgesFull => format!("There may be {} of them in a database.", crate::bridge::MAX_BRIDGES),
            Error::FenceLost { why, .. }
            | Error::ClaimLost { why, .. }
            | Error::AttemptLost { why, .. }
            | Error::NameInUse { why, .. }
            | Error::InUse { why, .. }
            | Error::Owned { why, .. } => why.clone(),
            Error::Bound { queue, with_items: true, .. } => {
                format!("Queue \"{queue}\" is bound to it and has items.")
            }
            Error::Bound { queue, .. } => format!("Queue \"{queue}\" is bound to it."),
            Error::Foreign { resource: Some(resource), .. } => {
                format!("It is the session that has resource \"{resource}\" under this fence.")
            }
            Error::NotOwner { owner, .. } => format!("It belongs to role \"{owner}\"."),
            Error::NoPartition { partitions: number, .. } => format!("It has {}.", partitions(*number)),
            Error::Payload { bytes, most, as_text } => {
                format!("It has {bytes} bytes{}; the limit is {most}.", if *as_text { " as text" } else { "" })
            }
            Error::Keys { keys, payloads } => {
                format!("Given were {} and {}.", count(*payloads, "payload"), count(*keys, "key"))
            }
            Error::Fences { fences, partitions } => {
                format!("Given were {} and {}.", count(*partitions, "partition"), count(*fences, "fence"))
            }
            Error::Position(given) => format!("{given} was given; the limits are 1 and {}.", i64::MAX - 1),
            Error::AcksFull { most, .. } => format!("There may be {most} ranges of them."),
            Error::PositionRaised { given, most } => format!("{given} was given; the limits are 0 and {most}."),
            Error::PositionsFull => format!("There may be {} of them.", crate::position::MOST),
            Error::InFlight { fence, .. } => {
                format!("The end, the release or the take-over of fence {fence} is in progress in another transaction.")
            }
            Error::Overdue { fence, .. } => {
                format!("The rebalance_timeout is over, and nothing new can be done under fence {fence}.")
            }
            Error::ResultTooLarge { length, .. } => {
                format!("It is {length} bytes long as text; the limit is {}.", crate::execution::MAX_RESULT)
            }
            Error::FenceRequired { given_away: true, .. } => {
                "The pass of this transaction ended when it gave the lease away.".to_owned()
            }
            Error::FenceRequired { partition: Some(partition), partitions: Some(number), resource, .. }
                if !(0..*number).contains(partition) =>
            {
                format!("Group \"{resource}\" has {}.", partitions(*number))
            }
            Error::FenceRequired { .. } => {
                "This transaction has not passed fence_check() for it, or has rolled that back to a savepoint."
                    .to_owned()
            }
            Error::PartitionColumn { why, .. } => why.clone(),
            Error::Unfenceable { why, .. } => (*why).to_owned(),
            Error::BridgeClosed { why, .. } | Error::Unbridgeable { why, .. } => why.clone(),
            Error::BridgedAlready { resource, .. } => format!("It is bridged to \"{resource}\"."),
            Error::TableLocked { .. } => "Another process has it, or an index of it, locked.".to_owned(),
            Error::FenceReplaceable { by, .. } => format!("The privilege TRIGGER is granted to {by}."),
            Error::FencedAlready { resource, column, .. } => match column {
                Some(column) => format!("It is fenced by \"{resource}\", by its column \"{column}\"."),
                None => format!("It is fenced by \"{resource}\"."),
            },
            Error::TruncateFenced { resource, .. } => {
                format!("It would take the rows of all partitions of group \"{resource}\".")
            }
            Error::AttemptNewer { .. } => {
                "What the attempt before has left is not part of what this transaction reads.".to_owned()
            }
            Error::NewerThanSnapshot { fence, .. } => {
                format!("Fence {fence} was granted after what this transaction reads.")
            }
            _ => return None,
        })
    }

    fn hint(&self) -> Option<String> {
        Some(
            match self {
                Error::NotPreloaded => "Add eskit_lease to shared_preload_libraries and restart the server.",
                Error::AnotherPreloaded => "Restart the server.",
                Error::LibraryOlder(_) => {
                    "Restart the server, so that it loads the library that has been installed, and update then. Without preload, connect again."
                }
                Error::Unserved(_) => {
                    "Run ALTER EXTENSION eskit_lease UPDATE. If that finds nothing to do, install the library of that version and restart the server."
                }
                Error::SchemaRenamed => {
                    "Name it eskit_lease again (ALTER SCHEMA .. RENAME TO eskit_lease); if another schema has that name now, rename that one first."
                }
                Error::Recovery => "Connect to the primary server.",
                Error::ReadOnly(_) => {
                    "Only session_heartbeat, session_wait, session_detach, lease_renew, fence_check, group_assignment, cursor_position, \
                     position_horizon and, where they change nothing, lease_acquire and lease_acquire_many work in a read-only transaction."
                }
                Error::Interval { what, .. } if *what == "ttl" => {
                    "The limits are the settings eskit_lease.min_ttl and eskit_lease.max_ttl."
                }
                Error::Interval { what, .. } if *what == "eskit_lease.default_ttl" => {
                    "Give a ttl, or set it to one from eskit_lease.min_ttl to eskit_lease.max_ttl."
                }
                Error::Assignor(_) => {
                    return Some(format!("The assignors are {}.", Assignor::ALL.map(Assignor::name).join(" and ")));
                }
                Error::Foreign { .. } => "A session is used by the role that opened it, or by a member of that role.",
                Error::NotAttached => "Open the session with attach => true, or leave attach_grace out.",
                Error::SessionsFull => {
                    "Close sessions that are not needed, or raise eskit_lease.max_sessions and restart the server."
                }
                Error::RoleFull { .. } => {
                    "Close sessions that are not needed, or have a superuser raise eskit_lease.max_sessions_per_role for the role."
                }
                Error::DatabasesFull => "Raise eskit_lease.max_databases and restart the server.",
                Error::BridgesFull => "Drop bridges that are not needed with bridge_drop.",
                Error::PlacesFull => "Leave queues with lease_cancel, or wait in several sessions.",
                Error::Declared { .. } => "Choose another name: leases, semaphores, groups and bridges share one name space.",
                Error::NameInUse { .. } => "Declare the name before it is used, or once nobody holds it or waits for it.",
                Error::Owned { .. } => {
                    "Resize it with drain => true, which first has its members release their partitions."
                }
                Error::InUse { kind: "group", .. } => {
                    "Have its members leave, or close their sessions; whoever may read the view group_members sees them all."
                }
                Error::Bound { with_items: true, .. } => "Finish the items first: their keys would belong elsewhere.",
                Error::Bound { .. } => "Drop the queue first.",
                Error::InUse { kind: "queue", .. } => "Finish its items first, or drop it with items => true.",
                Error::InUse { .. } => "Try again once nobody holds it or waits for it.",
                Error::BeingDeclared { .. } | Error::Joining { .. } | Error::AttemptInFlight { .. } => {
                    "Try again when that transaction has ended."
                }
                Error::WrongKind { is: "group", wanted: "lease", .. } => "Join a group with group_join.",
                Error::WrongKind { is: "group", .. } => {
                    "A group is changed with group_alter and group_resize, and dropped with group_drop."
                }
                Error::WrongKind { is: "semaphore", .. } => {
                    "A permit of a semaphore is acquired with lease_acquire; semaphore_resize and semaphore_drop are for its owner."
                }
                Error::WrongKind { is: "bridge", .. } => {
                    "A bridge is acquired with lease_acquire and a place in its queue; bridge_drop is for its owner."
                }
                Error::Unknown { kind: "group", .. } => "Groups are made with group_create, and known once that is committed.",
                Error::Unknown { kind: "execution", .. } => {
                    "A key comes with execution_begin; once done or resolved it is removed after eskit_lease.execution_retention."
                }
                Error::Ordering(_) => "The orderings are none, fifo and key.",
                Error::ClaimLost { .. } => {
                    "Stop this work and roll back: somebody else may have the item, or have done it."
                }
                Error::ClaimInFlight { .. } | Error::ItemInFlight { .. } => "Roll back and ask again.",
                Error::Unknown { kind: "queue", .. } => "Queues are made with queue_create, and known once that is committed.",
                Error::Unknown { kind: "dead item", .. } => {
                    "It may be in its queue again; whoever may read the view dead_items sees those that there are."
                }
                Error::Unknown { .. } => "Semaphores are made with semaphore_create, and known once that is committed.",
                Error::Position(..=0) => "For a stream that begins at 0, count one more: a cursor at 0 has seen nothing.",
                Error::AcksFull { .. } => "Acknowledge the oldest positions first.",
                Error::PositionsFull => "Write the rows in several transactions.",
                Error::NoGrace { .. } => "Release a partition with group_release.",
                Error::SessionEnded("draining") => "A session that drains begins nothing, joins no group and claims no items.",
                Error::SessionEnded("sessions_full") => {
                    "It keeps what it has for its TTL; ask again when places are free, or raise eskit_lease.max_sessions and restart the server."
                }
                Error::SessionEnded(_) => "Open a new session.",
                Error::NotMember { .. } => "Join the group with group_join.",
                Error::AttachPrepared => "Open the session without attach, or commit before PREPARE TRANSACTION.",
                Error::FenceLost { .. } => {
                    "Stop this work and roll back: somebody else may hold the lease. Acquire it again before going on."
                }
                Error::AttemptLost { .. } => {
                    "Stop this work and roll back: the attempt is over. execution_begin tells what stands, or begins another."
                }
                Error::ResultTooLarge { .. } => "Keep the result elsewhere, and where it is here.",
                Error::Outcome(_) => "The outcomes are done, failed and retry.",
                Error::NoResult(_) => "Give a result with the outcome done.",
                Error::InFlight { .. } => "Roll back and ask again: the lease may have been lost.",
                Error::BridgeClosed { hint, .. } | Error::Unbridgeable { hint, .. } => hint,
                Error::ReadAsUtc { .. } => {
                    "Old workers must write UTC into it, whatever their time zone. If that is not certain, make it timestamptz first."
                }
                Error::NoRow { .. } => "Insert the row that old workers lease by first.",
                Error::BridgedAlready { .. } => "Acquire that name, or drop its bridge first.",
                Error::TableLocked { .. } => "Try again when that process is done.",
                Error::Overdue { .. } => "Roll back, and give the partition back with group_release.",
                Error::FenceRequired { given_away: true, .. } => {
                    "Write before the lease is given away, or check its new fence once it has been granted again."
                }
                Error::FenceRequired { partition: Some(partition), partitions: Some(partitions), .. }
                    if !(0..*partitions).contains(partition) =>
                {
                    "Give the row another partition; for one that is in the table, call eskit_lease.unfence_table() first, or give the group more partitions with group_resize."
                }
                Error::FenceRequired { resource, partition: None, .. } => {
                    let name = literal(resource);
                    return Some(format!("Call eskit_lease.fence_check({name}, fence) first, in the same transaction."));
                }
                Error::FenceRequired { resource, partition: Some(partition), .. } => {
                    let name = literal(resource);
                    return Some(format!(
                        "Call eskit_lease.fence_check({name}, fence) or eskit_lease.cursor_commit({name}, {partition}, position, \
                         fence) first, in the same transaction."
                    ));
                }
                Error::FenceReplaceable { .. } => "Revoke TRIGGER on it, and on its partitions, if they are not to be trusted with it.",
                Error::FencedAbove(_) => "Call eskit_lease.fence_table() for that table.",
                Error::PartitionNull { .. } => {
                    "Give the row a partition; for one that is in the table, call eskit_lease.unfence_table() first."
                }
                Error::FencedAlready { .. } => "Call eskit_lease.unfence_table() first.",
                Error::ColumnGone { .. } => "Call eskit_lease.unfence_table(), and fence it by the column that there is now.",
                Error::TruncateFenced { .. } => "Delete the rows, or call eskit_lease.unfence_table() first.",
                Error::NoFenceTrigger => "Call eskit_lease.fence_table().",
                Error::AttemptNewer { .. } => "Retry the transaction.",
                Error::CursorNewer { .. } | Error::CursorElsewhere { .. } => {
                    "Another transaction under the same fence has moved it. Roll back, read the position again in a new transaction, and \
                     begin there."
                }
                Error::NewerThanSnapshot { .. } => {
                    "Begin the transaction after the lease has been granted, and retry it."
                }
                _ => return None,
            }
            .to_owned(),
        )
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> ErrorReport {
        match error {
            Error::FenceLost { .. } | Error::ClaimLost { .. } | Error::AttemptLost { .. } => raise_own(FENCE_LOST),
            Error::FenceRequired { .. } => raise_own(FENCE_REQUIRED),
            _ => (),
        }
        let mut report = ErrorReport::new(error.code(), error.to_string(), "eskit_lease");
        if let Some(detail) = error.detail() {
            report = report.set_detail(detail);
        }
        if let Some(hint) = error.hint() {
            report = report.set_hint(hint);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_and_many() {
        assert_eq!([0, 1, 2].map(|number| super::count(number, "key")), ["0 keys", "1 key", "2 keys"]);
        assert_eq!(super::partitions(1), "1 partition, which is number 0");
        assert_eq!(super::partitions(3), "3 partitions, numbered from 0 to 2");
    }
}
