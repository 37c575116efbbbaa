//! Values that this extension never writes: a null in a column that the schema declares NOT NULL, or a word that a
//! column may not have. Something other than this extension has changed such a table.
//!
//! A caller gets an error that names the table and the column. A worker has no caller, and an error would end it at the
//! same row again and again. So it warns once, and goes on with zero, false, or an empty text. With zero, a session is
//! not of this start of the server, and a fence is below all others.

use super::catalog;
use super::text::Text;
use crate::base::error::{Error, raise};
use pgrx::pg_sys::Oid;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{FromDatum, PgLogLevel, Uuid};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A type of NOT NULL columns, with the value that a worker takes in place of a null.
pub trait Column: FromDatum {
    fn nothing() -> Self;
}

macro_rules! column {
    ($($type:ty => $nothing:expr;)*) => {
        $(impl Column for $type {
            fn nothing() -> $type {
                $nothing
            }
        })*
    };
}

column! {
    bool => false;
    i32 => 0;
    i64 => 0;
    f64 => 0.0;
    Oid => Oid::INVALID;
    Text => Text(String::new());
    Uuid => Uuid::from_bytes([0; 16]);
    Vec<i64> => Vec::new();
}

thread_local! {
    /// Columns that this worker has warned of.
    static WARNED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Raises XX001 for a null in a NOT NULL column. In a worker it warns instead, and returns a value in its place.
#[cold]
pub fn missing<T: Column>(table: String, column: String) -> T {
    let place = format!("{table}.{column}");
    tell(place, Error::NullColumn { table, column }.into());
    T::nothing()
}

/// Returns the meaning of a column's word. Raises XX001 for a word that is not `known`. In a worker it warns instead,
/// and returns `otherwise`.
pub fn known<T>(table: &str, column: &str, word: &str, known: Option<T>, otherwise: T) -> T {
    known.unwrap_or_else(|| {
        let (table, column, value) = (table.to_owned(), column.to_owned(), word.to_owned());
        tell(format!("{table}.{column}"), Error::UnknownValue { table, column, value }.into());
        otherwise
    })
}

#[cold]
fn tell(place: String, error: ErrorReport) {
    let is_new = |warned: &mut BTreeSet<String>| warned.insert(place);
    if !catalog::is_patient() {
        raise(error);
    } else if WARNED.with_borrow_mut(is_new) {
        error.report(PgLogLevel::WARNING);
    }
}
