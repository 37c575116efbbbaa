//! Refusals of a name that is declared, or is being declared: of a semaphore, a group, a bridge, a queue or a run-once
//! key; or of a topic that help() does not know.

use super::report::{Report, busy, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum NameError {
    Declared { name: String, is: &'static str },
    NameInUse { name: String, why: String },
    InUse { kind: &'static str, name: String, why: String },
    BeingDeclared { name: String },
    WrongKind { name: String, is: &'static str, wanted: &'static str },
    Unknown { kind: &'static str, name: String },
    NotOwner { kind: &'static str, name: String, owner: String },
    NameDeclared { name: String, is: &'static str },
    Undeclared { name: String, nearest: Option<String> },
    NoTopic { topic: String, nearest: Option<String> },
}

raised!(NameError);

impl From<NameError> for Report {
    fn from(error: NameError) -> Report {
        use NameError::*;
        match error {
            Declared { name, is } => report(Code::ERRCODE_DUPLICATE_OBJECT, format!("{is} \"{name}\" already exists"))
                .set_hint("Choose another name: leases, semaphores, groups and bridges share one name space."),
            NameInUse { name, why } => report(Code::ERRCODE_DUPLICATE_OBJECT, format!("resource \"{name}\" is in use"))
                .set_detail(why)
                .set_hint("Declare the name before it is used, or once no session holds it or waits for it."),
            InUse { kind, name, why } => report(Code::ERRCODE_OBJECT_IN_USE, format!("{kind} \"{name}\" is in use"))
                .set_detail(why)
                .set_hint(how_to_free(kind)),
            BeingDeclared { name } => busy(format!("name \"{name}\" is being changed in another transaction"))
                .set_hint("Try again when that transaction has ended."),
            WrongKind { name, is, wanted } => {
                let message = format!("\"{name}\" is a {is}, not a {wanted}");
                let report = report(Code::ERRCODE_WRONG_OBJECT_TYPE, message);
                match how_to_use(is, wanted) {
                    Some(hint) => report.set_hint(hint),
                    None => report,
                }
            }
            Unknown { kind, name } => {
                report(Code::ERRCODE_UNDEFINED_OBJECT, format!("{kind} \"{name}\" does not exist"))
                    .set_hint(how_to_make(kind))
            }
            NotOwner { kind, name, owner } => {
                report(Code::ERRCODE_INSUFFICIENT_PRIVILEGE, format!("must be owner of {kind} \"{name}\""))
                    .set_detail(format!("It belongs to role \"{owner}\"."))
            }
            NameDeclared { name, is } => {
                report(Code::ERRCODE_DUPLICATE_OBJECT, format!("name \"{name}\" is already declared"))
                    .set_detail(format!("It is declared as a {is}."))
                    .set_hint("To declare it in another way, drop the declaration with lease_undeclare first.")
            }
            Undeclared { name, nearest } => report(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("lease \"{name}\" is not declared"),
            )
            .set_detail(format!(
                "eskit_lease.declared_names is on, and neither the name \"{name}\" nor a prefix of it is declared."
            ))
            .set_hint(match nearest {
                Some(nearest) => format!("The nearest is {nearest}; lease_declare declares another."),
                None => how_to_make("declared name").to_owned(),
            }),
            NoTopic { topic, nearest } => {
                let report = report(Code::ERRCODE_UNDEFINED_OBJECT, format!("help topic \"{topic}\" does not exist"));
                match nearest {
                    Some(nearest) => report.set_hint(format!("The nearest is \"{nearest}\"; help() lists the topics.")),
                    None => report.set_hint("help() lists the topics."),
                }
            }
        }
    }
}

fn how_to_free(kind: &str) -> &'static str {
    match kind {
        "group" => {
            "Have its members leave, or close their sessions; the view group_members shows them all to a role that may read it."
        }
        "queue" => "Finish its items first, or drop it with items => true.",
        _ => "Try again once no session holds it or waits for it.",
    }
}

fn how_to_use(is: &str, wanted: &str) -> Option<&'static str> {
    Some(match (is, wanted) {
        ("group", "lease") => "Join a group with group_join.",
        (_, "group") => "Give the name of a group, which group_create makes.",
        ("group", _) => "A group is changed with group_alter and group_resize, and dropped with group_drop.",
        ("semaphore", _) => {
            "A permit of a semaphore is acquired with lease_acquire; semaphore_resize and semaphore_drop are for its \
             owner."
        }
        ("bridge", _) => {
            "A bridge is acquired with lease_acquire and a place in its queue; bridge_drop is for its owner."
        }
        _ => return None,
    })
}

fn how_to_make(kind: &str) -> &'static str {
    match kind {
        "group" => "Groups are made with group_create, and known once that is committed.",
        "declared name" => "Names and prefixes are declared with lease_declare, and known once that is committed.",
        "execution" => {
            "A key comes with execution_begin; once done or resolved it is removed after \
             eskit_lease.execution_retention."
        }
        "queue" => "Queues are made with queue_create, and known once that is committed.",
        "bridge" => "Bridges are made with bridge_create or bridge_create_row, and known once that is committed.",
        "dead item" => {
            "It may be in its queue again; the view dead_items shows what there is to a role that may read it."
        }
        _ => "Semaphores are made with semaphore_create, and known once that is committed.",
    }
}
