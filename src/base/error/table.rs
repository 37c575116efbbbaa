//! Why a user's table cannot be bridged to, or cannot be fenced, and a warning about its columns.

use super::report::{Report, busy, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum TableError {
    NoTable(u32),
    NoColumn {
        table: String,
        column: String,
    },
    NoRow {
        table: String,
        key: String,
    },
    TableLocked {
        table: String,
    },
    Unbridgeable {
        table: String,
        why: String,
        hint: &'static str,
    },
    ReadAsUtc {
        column: String,
    },
    Unfenceable {
        table: String,
        why: &'static str,
    },
    Unwatchable(String),
    PartitionColumn {
        table: String,
        column: String,
        why: String,
    },
    #[cfg(feature = "pg19")]
    RepackedConcurrently(String),
}

raised!(TableError);

impl From<TableError> for Report {
    fn from(error: TableError) -> Report {
        use TableError::*;
        match error {
            NoTable(oid) => report(Code::ERRCODE_UNDEFINED_TABLE, format!("table with OID {oid} does not exist")),
            NoColumn { table, column } => report(
                Code::ERRCODE_UNDEFINED_COLUMN,
                format!("column \"{column}\" of relation \"{table}\" does not exist"),
            ),
            NoRow { table, key } => {
                report(Code::ERRCODE_NO_DATA_FOUND, format!("table \"{table}\" has no row of key \"{key}\""))
                    .set_hint("Insert the row that old workers lease by first.")
            }
            TableLocked { table } => busy(format!("could not lock table \"{table}\""))
                .set_detail("Another process has it, or an index of it, locked.")
                .set_hint("Try again when that process is done."),
            Unbridgeable { table, why, hint } => {
                report(Code::ERRCODE_WRONG_OBJECT_TYPE, format!("table \"{table}\" cannot be bridged to"))
                    .set_detail(why)
                    .set_hint(hint)
            }
            ReadAsUtc { column } => {
                report(Code::ERRCODE_WARNING, format!("column \"{column}\" has no time zone, and is read as UTC"))
                    .set_hint(
                        "Old workers must write UTC into it, whatever their time zone. If that is not certain, make \
                         it timestamptz first.",
                    )
            }
            Unfenceable { table, why } => {
                report(Code::ERRCODE_WRONG_OBJECT_TYPE, format!("\"{table}\" cannot be fenced")).set_detail(why)
            }
            Unwatchable(relation) => {
                report(Code::ERRCODE_WRONG_OBJECT_TYPE, format!("\"{relation}\" cannot be watched"))
                    .set_detail("It is not a table.")
                    .set_hint("Watch the table that the rows are inserted into.")
            }
            PartitionColumn { table, column, why } => report(
                Code::ERRCODE_DATATYPE_MISMATCH,
                format!("column \"{column}\" of relation \"{table}\" cannot tell the partition"),
            )
            .set_detail(why),
            #[cfg(feature = "pg19")]
            RepackedConcurrently(table) => report(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                format!("table \"{table}\" cannot be repacked concurrently"),
            )
            .set_detail("It is a table of extension eskit_lease, whose transactions would take all its rows for new.")
            .set_hint("VACUUM it, or use REPACK without CONCURRENTLY."),
        }
    }
}
