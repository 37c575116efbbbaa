//! The other side of a bridge, and the row that describes it.

use super::target::Target;
use crate::pg::catalog;
use crate::pg::spi::Value;
use crate::pg::table::{Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use pgrx::pg_sys;

/// The other side of a bridge: what excludes its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The advisory lock of this key.
    Lock(i64),
    Row(Target),
}

/// Why a check cannot pass, and what the caller may do.
pub struct Closed {
    pub why: String,
    pub hint: &'static str,
}

pub fn table() -> Table {
    Table::open(c"_bridges", c"_bridges_pkey")
}

/// Returns whether this database may have bridges; version 0.1.0 had none.
pub fn may_be() -> bool {
    catalog::relation(c"_bridges") != pg_sys::Oid::INVALID
}

impl Side {
    fn read(row: &Tuple) -> Side {
        if let Some(key) = row.get(2) {
            return Side::Lock(key);
        }
        let text = |column| row.required::<Text>(column).0;
        Side::Row(Target { table: row.required(3), key: text(4), owner_column: text(5), until_column: text(6) })
    }

    /// Returns the other side of the bridge of a resource.
    pub fn of(resource: &str) -> Option<Side> {
        table().scan(Sight::Latest, &[Key::Text(resource)], |row, _| Some(Side::read(row)))
    }
}

/// Notes why the row of a bridge cannot be kept, or that it can. Returns false if another transaction is changing the
/// bridge.
pub fn note(resource: &str, trouble: Option<&str>) -> bool {
    let (table, column) = (table(), 7);
    let noted = table.scan(Sight::Latest, &[Key::Text(resource)], |row, _| Some(row.get::<Text>(column)));
    // No constraint of the table involves this column.
    let change = || table.try_update(&[(column as i32, Value::MaybeText(trouble).datum())]) == Locked::Mine;
    noted.is_none_or(|noted| noted.as_deref() == trouble || change())
}
