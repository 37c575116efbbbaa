//! A user's table, by its oid and its primary key. No name is looked up and no statement is parsed: a rename, or a view
//! in place of the table, changes nothing. Reading by a key of PostgreSQL's own types runs only PostgreSQL's own code.

use super::open::Table;
use super::raw;
use crate::pg::guard::as_transaction;
use crate::pg::text::text_datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use pgrx::pg_sys::{self, LOCKMODE, Oid};

/// The text for a missing primary key and for a deferrable one: PostgreSQL's versions differ in how they report the
/// latter.
const NO_KEY: &str = "It has no primary key, or a deferrable one.";

/// Why a table cannot be used.
pub enum Shut {
    /// Another process has the table locked.
    Busy,
    NoColumn(String),
    /// The table is of a kind, or has types, that cannot be written here.
    Unfit(String),
    /// A write to the table would involve more than its rows and indexes.
    Unplain(String),
    /// A column is too short.
    Narrow(String),
}

impl Shut {
    pub fn unfit<T>(why: &str) -> Result<T, Shut> {
        Err(Shut::Unfit(why.to_owned()))
    }
}

/// A column, as the catalog has it.
pub struct Column {
    pub number: i16,
    pub is: Oid,
    /// `n` of `varchar(n)`.
    pub most: Option<usize>,
}

/// Locks a table or an index to the end of the transaction, without waiting.
unsafe fn try_lock(relation: Oid, mode: LOCKMODE) -> Result<(), Shut> {
    // SAFETY: in a transaction
    let had = as_transaction(|| unsafe { pg_sys::ConditionalLockRelationOid(relation, mode) });
    if had { Ok(()) } else { Err(Shut::Busy) }
}

/// Locks a table to the end of the transaction, waiting without limit.
pub fn lock(table: Oid, mode: u32) {
    // SAFETY: in a transaction
    unsafe { pg_sys::LockRelationOid(table, mode as LOCKMODE) };
}

impl Table {
    /// Opens a user's table, if its primary key has one column. Fails if another process has locked the table or its
    /// long values. The lock lasts to the end of the transaction.
    pub fn of_user(table: Oid, mode: u32) -> Result<Table, Shut> {
        let mode = mode as LOCKMODE;
        // SAFETY: in a transaction; the table is locked before it is read; what is open is closed by Drop, or by
        // PostgreSQL when it raises
        unsafe {
            try_lock(table, mode)?;
            match pg_sys::get_rel_relkind(table) as u8 {
                0 => return Shut::unfit("It is no more."),
                pg_sys::RELKIND_RELATION => (),
                pg_sys::RELKIND_PARTITIONED_TABLE => return Shut::unfit("It is partitioned."),
                _ => return Shut::unfit("It is not a table."),
            }
            let relation = guarded(|| raw::try_table_open(table, pg_sys::NoLock as LOCKMODE));
            if relation.is_null() {
                return Shut::unfit("It is no more.");
            }
            match try_lock_toast(relation, mode).and_then(|()| open_key(relation, mode)) {
                Ok(key) => {
                    let slot = guarded(|| raw::table_slot_create(relation, std::ptr::null_mut()));
                    Ok(Table::of(relation, key, slot, false))
                }
                Err(shut) => {
                    guarded(|| raw::table_close(relation, pg_sys::NoLock as LOCKMODE));
                    Err(shut)
                }
            }
        }
    }

    /// Returns the column with a name, if there is one.
    pub fn column(&self, name: &str) -> Option<Column> {
        // SAFETY: the relation is open and locked; reads the catalog through its cache; text_to_cstring ends the name
        // in NUL
        unsafe {
            let table = (*self.relation).rd_id;
            let number = pg_sys::get_attnum(table, pg_sys::text_to_cstring(text_datum(name).cast_mut_ptr()));
            (number > 0).then(|| column(table, number))
        }
    }

    /// Returns the column of the key.
    pub fn key_column(&self) -> Column {
        // SAFETY: both relations are open; the key has one column, and not an expression
        unsafe { column((*self.relation).rd_id, *(*(*self.key).rd_index).indkey.values.as_ptr()) }
    }

    /// Returns the owner of the table.
    pub fn owner(&self) -> Oid {
        // SAFETY: the relation is open
        unsafe { (*(*self.relation).rd_rel).relowner }
    }

    /// Raises, as a statement would, if rows cannot be changed: the table is published, and a subscriber could not tell
    /// which row has changed.
    pub fn require_identity(&self) {
        // SAFETY: the relation is open
        unsafe { pg_sys::CheckCmdReplicaIdentity(self.relation, pg_sys::CmdType::CMD_UPDATE) };
    }

    /// Locks the indexes without waiting, so that a write of a row waits for no other process.
    pub fn try_lock_indexes(&self) -> Result<(), Shut> {
        // SAFETY: the relation is open
        unsafe { try_lock_indexes(self.relation, pg_sys::RowExclusiveLock as LOCKMODE) }
    }
}

unsafe fn try_lock_indexes(table: pg_sys::Relation, mode: LOCKMODE) -> Result<(), Shut> {
    // SAFETY: the relation is open, as the caller promises; the list is a copy
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        let indexes: Vec<Oid> = pgrx::PgList::<Oid>::from_pg(list).iter_oid().collect();
        indexes.into_iter().try_for_each(|index| try_lock(index, mode))
    }
}

/// Locks the table of long values and its index without waiting. Any column of the row may be stored in that table, and
/// reading it would wait for the lock.
unsafe fn try_lock_toast(table: pg_sys::Relation, mode: LOCKMODE) -> Result<(), Shut> {
    // SAFETY: the relation is open and locked, so its table of long values stays the same
    unsafe {
        let toast = (*(*table).rd_rel).reltoastrelid;
        if toast == Oid::INVALID {
            return Ok(());
        }
        try_lock(toast, mode)?;
        let toast = guarded(|| raw::try_table_open(toast, pg_sys::NoLock as LOCKMODE));
        let locked = try_lock_indexes(toast, mode);
        guarded(|| raw::table_close(toast, pg_sys::NoLock as LOCKMODE));
        locked
    }
}

unsafe fn column(table: Oid, number: i16) -> Column {
    let (mut is, mut typmod, mut collation) = (Oid::INVALID, -1, Oid::INVALID);
    // SAFETY: the column is there, as the caller knows
    unsafe { pg_sys::get_atttypetypmodcoll(table, number, &mut is, &mut typmod, &mut collation) };
    // A length includes its header of 4 bytes; without a length the number is negative.
    Column { number, is, most: usize::try_from(typmod - 4).ok() }
}

/// Opens the index of the primary key, if a value of it identifies one row.
unsafe fn open_key(table: pg_sys::Relation, mode: LOCKMODE) -> Result<pg_sys::Relation, Shut> {
    // SAFETY: the relation is open
    unsafe {
        let class = &*(*table).rd_rel;
        if (*table).rd_id.to_u32() < pg_sys::FirstNormalObjectId {
            return Shut::unfit("It is PostgreSQL's own.");
        }
        if class.relam != pg_sys::HEAP_TABLE_AM_OID {
            return Shut::unfit("It has an access method of its own.");
        }
        if class.relpersistence as u8 != pg_sys::RELPERSISTENCE_PERMANENT {
            return Shut::unfit("It is temporary or unlogged.");
        }
        pg_sys::list_free(pg_sys::RelationGetIndexList(table));
        let key = (*table).rd_pkindex;
        if key == Oid::INVALID {
            return Shut::unfit(NO_KEY);
        }
        try_lock(key, mode)?;
        let key = guarded(|| raw::index_open(key, pg_sys::NoLock as LOCKMODE));
        let index = &*(*key).rd_index;
        let why = if index.indnkeyatts != 1 {
            "Its primary key has several columns."
        } else if !index.indimmediate || !index.indisvalid {
            NO_KEY
        } else {
            return Ok(key);
        };
        guarded(|| raw::index_close(key, pg_sys::NoLock as LOCKMODE));
        Shut::unfit(why)
    }
}
