//! The row of a user's table to which a bridge leads, and whether that row is fit for a bridge.
//!
//! The worker is a superuser, and any user may own the table. So the worker runs no code of the table's. It finds the
//! table by its oid, and the row by a primary key of one of PostgreSQL's own types. It writes two columns by the row's
//! ctid ([`crate::pg::table`]). There is no SQL statement whose names could change their meaning, and no plan. Only the
//! index entries need more care: they are written with the rights of the table's owner.
//!
//! A write by ctid bypasses triggers, rules, policies and constraints. So the table must have none that would affect
//! the row. This is checked before each write (sql/query/bridge/fit.sql), while the table is locked against such
//! changes. A check of a fence only locks the row to read it, and needs none of this.

use crate::base::limits;
use crate::call::Call;
use crate::pg::catalog;
use crate::pg::lock_timeout::LockTimeout;
use crate::pg::spi::{AsOwner, Statement, Value};
use crate::pg::table::user::{Column, Shut};
use crate::pg::table::{Key, Locked, Sight, Table, Tuple};
use crate::pg::text::{Text, text_datum};
use crate::pg::types::type_name;
use pgrx::Uuid;
use pgrx::pg_sys::{self, Datum, INT2OID, INT4OID, INT8OID, OIDOID, Oid, TEXTOID, UUIDOID, VARCHAROID};

static FIT: Statement = Statement::reads(include_str!("../../sql/query/bridge/fit.sql"), &[OIDOID, INT2OID, INT2OID]);

/// The most bytes of an owner that are read: a marker has fewer, and other owners may have any number.
const LONGEST: usize = 1_000;

/// The row, and which of its columns name the owner and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub table: Oid,
    /// The key, as its type writes it.
    pub key: String,
    pub owner_column: String,
    pub until_column: String,
}

/// The table of a target, open and locked to the end of the transaction.
pub struct Opened<'a> {
    table: Table,
    target: &'a Target,
    owner: Column,
    until: Column,
}

/// The contents of the row.
pub struct Lease {
    /// The owner; empty if it is too long to be ours.
    pub owner: Option<String>,
    /// The time until which the owner has the row, as PostgreSQL stores it.
    pub until: Option<i64>,
}

impl Target {
    /// Opens the table if it has what the bridge needs. Locks it in a mode, without waiting.
    pub fn open(&self, mode: u32) -> Result<Opened<'_>, Shut> {
        let table = Table::of_user(self.table, mode)?;
        let owner = typed(&table, &self.owner_column, &[TEXTOID, VARCHAROID], "text or varchar")?;
        let until = typed(
            &table,
            &self.until_column,
            &[pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPOID],
            "timestamptz or timestamp",
        )?;
        Ok(Opened { table, target: self, owner, until })
    }

    /// Returns the words for the row in messages.
    pub fn told(&self) -> String {
        let of = |name| format!("row \"{}\" of table {name}", self.key);
        catalog::table_name(self.table)
            .map_or_else(|| of(format!("with OID {}", self.table.to_u32())), |name| of(format!("\"{name}\"")))
    }
}

fn typed(table: &Table, name: &str, types: &[Oid], wanted: &str) -> Result<Column, Shut> {
    match table.column(name) {
        None => Err(Shut::NoColumn(name.to_owned())),
        Some(column) if types.contains(&column.is) => Ok(column),
        Some(column) => {
            Err(Shut::Unfit(format!("Its column \"{name}\" is of type {}, not {wanted}.", type_name(column.is))))
        }
    }
}

/// Returns a key as a value of a column's type; `None` if it is no such value: the type may have changed since the key
/// was stored.
fn key(is: Oid, key: &str) -> Option<Key<'_>> {
    match is {
        TEXTOID | VARCHAROID => Some(Key::Text(key)),
        INT2OID => key.parse().ok().map(Key::Short),
        INT4OID => key.parse().ok().map(Key::Int),
        INT8OID => key.parse().ok().map(Key::Long),
        UUIDOID => {
            let digits = u128::from_str_radix(&key.replace('-', ""), 16).ok();
            digits.map(|digits| Key::Uuid(Uuid::from_bytes(digits.to_be_bytes())))
        }
        _ => None,
    }
}

impl Opened<'_> {
    /// Returns the type of the primary key. Refuses a type that cannot be looked up here.
    pub fn key_type(&self) -> Result<Oid, Shut> {
        let is = self.table.key_column().is;
        if matches!(is, TEXTOID | VARCHAROID | INT2OID | INT4OID | INT8OID | UUIDOID) {
            return Ok(is);
        }
        Err(Shut::Unfit(format!(
            "Its primary key is of type {}, not text, varchar, uuid, smallint, integer or bigint.",
            type_name(is)
        )))
    }

    /// Returns the contents of the row, by the latest snapshot; `None` if there is no row. Leaves the table positioned
    /// at the row.
    pub fn find(&self) -> Result<Option<Lease>, Shut> {
        let Some(key) = key(self.key_type()?, &self.target.key) else { return Ok(None) };
        Ok(self.table.scan(Sight::Latest, &[key], |row, _| Some(self.read(row))))
    }

    /// Returns the contents of the row at which the table is positioned.
    fn read(&self, row: &Tuple) -> Lease {
        let at = |column: &Column| usize::try_from(column.number).unwrap_or(0);
        let owner = match row.size(at(&self.owner)) {
            0 => None,
            short if short <= LONGEST => row.get::<Text>(at(&self.owner)).map(|text| text.0),
            _ => Some(String::new()),
        };
        Lease { owner, until: row.get(at(&self.until)) }
    }

    /// Refuses a table for which a write by ctid would leave something undone, such as its triggers.
    pub fn require_fit(&self, call: &Call) -> Result<(), Shut> {
        self.table.require_identity();
        let values = [self.owner.number, self.until.number].map(|number| Value::Datum(Datum::from(number)));
        let [owner, until] = values;
        let why = call.db().run(&FIT, vec![Value::Oid(self.target.table.to_u32()), owner, until], |row| row.text(1));
        why.into_iter().next().map_or(Ok(()), |why| Err(Shut::Unplain(why)))
    }

    /// Returns whether the time column has no time zone; then it is read as UTC.
    pub fn is_without_time_zone(&self) -> bool {
        self.until.is == pg_sys::TIMESTAMPOID
    }

    /// Refuses an owner column that is too short.
    pub fn require_room(&self, length: usize) -> Result<(), Shut> {
        match self.owner.most.filter(|most| *most < length) {
            Some(most) => {
                Err(Shut::Narrow(format!("Its owner column holds {most} characters, and {length} are needed.")))
            }
            None => Ok(()),
        }
    }

    /// Locks the row that the table is positioned at against all changes, without waiting. Returns false if another
    /// transaction has locked or changed the row.
    pub fn try_lock(&self) -> bool {
        self.lock_as(pg_sys::LockTupleMode::LockTupleNoKeyExclusive)
    }

    /// Locks the row in share mode, without waiting. Returns false if another transaction has locked or changed it.
    pub fn try_share(&self) -> bool {
        self.lock_as(pg_sys::LockTupleMode::LockTupleShare)
    }

    fn lock_as(&self, mode: pg_sys::LockTupleMode::Type) -> bool {
        self.table.lock_as(self.table.row().tid(), mode, false) == Locked::Mine
    }

    /// Writes the locked row. `owner`: the new owner, if it changes. A timestamp without time zone is in UTC, as in
    /// ShedLock.
    pub fn write(&self, owner: Option<&str>, until: i64) -> Result<(), Shut> {
        self.table.try_lock_indexes()?;
        let _bounded = LockTimeout::begin(limits::ROW_LOCK_TIMEOUT_MS);
        let _owner = AsOwner::begin(self.table.owner());
        let owner = owner.map(|owner| (i32::from(self.owner.number), Some(text_datum(owner))));
        let until = (i32::from(self.until.number), Some(Datum::from(until)));
        let changes: Vec<_> = owner.into_iter().chain([until]).collect();
        if self.table.update(&changes) { Ok(()) } else { Err(Shut::Busy) }
    }
}
