//! Refusals of a bridge, or because of what is on its other side.

use super::report::{Report, busy, full, raised, report};
use crate::base::limits;
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum BridgeError {
    BridgeClosed { resource: String, to: String, why: String, hint: &'static str },
    BridgedAlready { to: String, resource: String },
    BridgesFull,
}

raised!(BridgeError);

impl From<BridgeError> for Report {
    fn from(error: BridgeError) -> Report {
        use BridgeError::*;
        match error {
            BridgeClosed { resource, to, why, hint } => {
                busy(format!("could not share {to}, to which \"{resource}\" is bridged")).set_detail(why).set_hint(hint)
            }
            BridgedAlready { to, resource } => {
                report(Code::ERRCODE_DUPLICATE_OBJECT, format!("{to} is bridged already"))
                    .set_detail(format!("It is bridged to \"{resource}\"."))
                    .set_hint("Acquire that name, or drop its bridge first.")
            }
            BridgesFull => full("too many bridges")
                .set_detail(format!("There may be {} of them in a database.", limits::MAX_BRIDGES))
                .set_hint("Drop bridges that are not needed with bridge_drop."),
        }
    }
}
