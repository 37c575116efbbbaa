//! Errors in rows and sequences: something other than this extension has written them.

use super::report::{Report, raised, report};
use pgrx::prelude::PgSqlErrorCode as Code;

#[derive(Debug)]
pub enum StoredError {
    NullColumn { table: String, column: String },
    SetBack { number: i64, greatest: i64 },
    UnknownValue { table: String, column: String, value: String },
}

raised!(StoredError);

impl From<StoredError> for Report {
    fn from(error: StoredError) -> Report {
        use StoredError::*;
        match error {
            UnknownValue { table, column, value } => report(
                Code::ERRCODE_DATA_CORRUPTED,
                format!("column \"{column}\" of table \"{table}\" has the value \"{value}\""),
            )
            .set_detail("This extension writes no such value; something else has.")
            .set_hint("Find the rows that have it. Delete them or give them a value that this extension writes."),
            SetBack { number, greatest } => report(
                Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
                "the sequence of fences or of work items has been set back",
            )
            .set_detail(format!(
                "{number} was drawn after {greatest}, as after a restore into a database in use. It is raised now."
            ))
            .set_hint("Repeat the transaction. Restore into a database in use with pg_restore --clean -1."),
            NullColumn { table, column } => {
                report(Code::ERRCODE_DATA_CORRUPTED, format!("column \"{column}\" of table \"{table}\" is null"))
                    .set_detail("The column was declared NOT NULL; something else than this extension changed that.")
                    .set_hint(
                        "Find the rows where it is null. Delete them or give them a value, and declare the column NOT \
                         NULL again.",
                    )
            }
        }
    }
}
