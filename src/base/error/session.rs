//! Refusals to a session, or because there is none.

use super::report::{Report, busy, full, invalid, raised, report, session_lost};
use crate::base::{limits, settings};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum SessionError {
    Foreign {
        owner: String,
        resource: Option<String>,
    },
    /// A warning: a take-over has found a session of the consumer, but not one of its role.
    NotTakenOver {
        consumer: String,
        owner: String,
        caller: String,
    },
    /// A warning.
    Pending,
    NotAttached,
    AttachPrepared,
    /// A notice.
    Stray,
    SessionsFull,
    RoleFull {
        role: String,
        most: u32,
    },
    PlacesFull,
    SessionEnded {
        /// The reason of the refusal.
        reason: &'static str,
        /// Whether the SQL objects are of a version up to 0.2.0, which has one SQLSTATE for all reasons.
        former: bool,
    },
}

raised!(SessionError);

impl From<SessionError> for Report {
    fn from(error: SessionError) -> Report {
        use SessionError::*;
        match error {
            Foreign { owner, resource } => {
                let message = format!("permission denied for session of role {owner}");
                let report = report(Code::ERRCODE_INSUFFICIENT_PRIVILEGE, message)
                    .set_hint("A session is used by the role that opened it, or by a member of that role.");
                match resource {
                    Some(resource) => report
                        .set_detail(format!("It is the session that has resource \"{resource}\" under this fence.")),
                    None => report,
                }
            }
            NotTakenOver { consumer, owner, caller } => report(
                Code::ERRCODE_WARNING,
                format!("consumer \"{consumer}\" has a session of role \"{owner}\", which was not taken over"),
            )
            .set_detail(format!("A take-over by role \"{caller}\" ends sessions of that role alone."))
            .set_hint(
                "Open the session as the other role, or close the former one: it keeps what it holds until it ends.",
            ),
            Pending => report(
                Code::ERRCODE_ACTIVE_SQL_TRANSACTION,
                "transaction is open for longer than the session's heartbeats are apart",
            )
            .set_detail("What it has opened, acquired and written is not committed, and is lost with the connection.")
            .set_hint(
                "Call sessions and leases in autocommit; psycopg and SQLAlchemy begin transactions by themselves. This \
                 transaction is not warned again.",
            ),
            NotAttached => invalid("attach_grace is given without attach")
                .set_hint("Open the session with attach => true, or leave attach_grace out."),
            AttachPrepared => report(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has attached a session to its connection",
            )
            .set_hint("Open the session without attach, or commit before PREPARE TRANSACTION."),
            Stray => report(
                Code::ERRCODE_SUCCESSFUL_COMPLETION,
                "session is attached to a connection that it is not used on",
            )
            .set_detail("It ends with the connection that opened it; all its calls have come on others.")
            .set_hint("Call session_detach(), and behind a pooler open sessions without attach."),
            SessionsFull => full("too many sessions")
                .set_detail(format!("eskit_lease.max_sessions is {}.", settings::MAX_SESSIONS.get()))
                .set_hint(
                    "Close sessions that are not needed, or raise eskit_lease.max_sessions and restart the server.",
                ),
            RoleFull { role, most } => full(format!("too many sessions of role \"{role}\""))
                .set_detail(format!("eskit_lease.max_sessions_per_role is {most}."))
                .set_hint(
                    "Close sessions that are not needed, or have a superuser raise \
                     eskit_lease.max_sessions_per_role for the role.",
                ),
            PlacesFull => full("too many places in queues")
                .set_detail(format!("The session waits for {} resources.", limits::MAX_PLACES))
                .set_hint("Leave queues with lease_cancel, or wait in several sessions."),
            SessionEnded { reason, former } => ended(reason, former),
        }
    }
}

/// Returns the text that says how a refused session stands, by the reason of the refusal.
fn ended(reason: &str, former: bool) -> Report {
    let how = match reason {
        "closing" => "is being closed",
        "draining" => "is draining",
        "sessions_full" => "has found no slot since the server was started",
        "uncommitted" => "is not committed yet",
        "unknown_session" => "does not exist",
        _ => "has ended",
    };
    let hint = match reason {
        "draining" => "A session that drains begins nothing, joins no group and claims no items.",
        "sessions_full" => {
            "It keeps what it has for its TTL; ask again when slots are free, or raise eskit_lease.max_sessions and \
             restart the server."
        }
        "uncommitted" if !former => "Commit the transaction that opens it; with autocommit that is one statement.",
        "closing" if !former => "Roll back and ask again; once it has ended, open a new session.",
        _ => "Open a new session.",
    };
    let message = format!("session {how}");
    let report = match reason {
        "closing" | "uncommitted" if !former => busy(message),
        "draining" | "sessions_full" => report(Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message),
        _ if former => report(Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message),
        _ => session_lost(message),
    };
    report.set_hint(hint)
}
