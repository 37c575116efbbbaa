//! The names that functions had in versions up to 0.2.0. Users may still have them: in a dump with a column default, or
//! in the body of a function. They do the same as today's functions, and warn once in a connection.

use crate::base::error::{Error, Result};
use crate::fenced::{self, unfence};
use crate::group::cursor;
use crate::pg::oids::Class;
use crate::pg::text::Text;
use crate::position;
use pgrx::PgLogLevel;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::RefCell;

thread_local! {
    /// The former names that this connection has been warned of.
    static WARNED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

fn warn(former: &'static str, today: &'static str) {
    let is_first = WARNED.with_borrow_mut(|warned| {
        let is_first = !warned.contains(&former);
        if is_first {
            warned.push(former);
        }
        is_first
    });
    if is_first {
        ErrorReport::from(Error::FormerName { former, today }).report(PgLogLevel::WARNING);
    }
}

#[pg_extern(schema = "eskit_lease", name = "next_position")]
fn former_next_position() -> Result<i64> {
    warn("next_position", "position_next");
    position::next_position()
}

#[pg_extern(schema = "eskit_lease", name = "cursor_head")]
fn former_cursor_head(group_name: Option<Text>, partition: Option<i32>, position: Option<i64>) -> Result<bool> {
    warn("cursor_head", "cursor_report_head");
    cursor::cursor_head(group_name, partition, position)
}

#[pg_extern(schema = "eskit_lease", name = "fence_table")]
fn former_fence_table(
    target: Option<Class>,
    resource: Option<Text>,
    partition_column: default!(Option<Text>, "NULL"),
) -> Result<bool> {
    warn("fence_table", "table_fence");
    fenced::fence_table(target, resource, partition_column)
}

#[pg_extern(schema = "eskit_lease", name = "unfence_table")]
fn former_unfence_table(target: Option<Class>) -> Result<bool> {
    warn("unfence_table", "table_unfence");
    unfence::unfence_table(target)
}
