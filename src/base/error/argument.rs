//! Refusals of an argument that is wrong in any state.

use super::report::{Report, count, invalid, raised, report};
use crate::base::{interval, limits};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum ArgumentError {
    Null(&'static str),
    Name { what: &'static str, length: usize },
    Interval { what: &'static str, given_ms: i128, min_ms: i64, max_ms: i64 },
    Number { what: &'static str, given: i64, min: i64, max: i64 },
    Argument { argument: &'static str, given: i64, min: i64, max: i64 },
    Infinite(&'static str),
    Twice { what: &'static str, given: String },
    Fences { fences: usize, partitions: usize },
    Revisions { sessions: usize, revisions: usize },
}

raised!(ArgumentError);

impl From<ArgumentError> for Report {
    fn from(error: ArgumentError) -> Report {
        use ArgumentError::*;
        match error {
            Null(what) => report(Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("{what} must not be null")),
            Name { what, length } => invalid(format!("{what} must be between 1 and {} bytes long", limits::MAX_NAME))
                .set_detail(match length {
                    0 => "An empty text was given.".to_owned(),
                    _ => format!("A text of {length} bytes was given."),
                }),
            Interval { what, given_ms, min_ms, max_ms } => out_of_range(what, given_ms, min_ms, max_ms),
            Number { what, given, min, max } => {
                invalid(format!("number of {what} is out of range")).set_detail(limits(given, min, max))
            }
            Argument { argument, given, min, max } => {
                invalid(format!("{argument} is out of range")).set_detail(limits(given, min, max))
            }
            Infinite(what) => invalid(format!("{what} must be finite")),
            Twice { what, given } => invalid(format!("{what} must not be given twice"))
                .set_detail(format!("\"{given}\" was given more than once.")),
            Fences { fences, partitions } => invalid("numbers of partitions and fences differ").set_detail(format!(
                "{} and {} were given.",
                count(partitions, "partition"),
                count(fences, "fence")
            )),
            Revisions { sessions, revisions } => invalid("numbers of sessions and revisions differ")
                .set_detail(format!("{} and {} were given.", count(sessions, "session"), count(revisions, "revision"))),
        }
    }
}

fn out_of_range(what: &str, given_ms: i128, min_ms: i64, max_ms: i64) -> Report {
    let [given, min, max] = [given_ms, min_ms.into(), max_ms.into()].map(interval::told);
    let report = invalid(format!("{what} is out of range")).set_detail(limits(given, min, max));
    match what {
        "ttl" | "eskit_lease.default_ttl" if min_ms > max_ms => report
            .set_hint("No session can be opened while the setting eskit_lease.min_ttl is above eskit_lease.max_ttl."),
        "ttl" => report.set_hint("The limits are the settings eskit_lease.min_ttl and eskit_lease.max_ttl."),
        "eskit_lease.default_ttl" => {
            report.set_hint("Give a ttl, or set it to one from eskit_lease.min_ttl to eskit_lease.max_ttl.")
        }
        _ => report,
    }
}

fn limits<T: std::fmt::Display>(given: T, min: T, max: T) -> String {
    format!("{given} was given; the limits are {min} and {max}.")
}
