//! Users' tables: the locks that this transaction holds on them, and whether the caller may read them.

use super::text;
use crate::base::error::{Error, Result};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

const ROW_EXCLUSIVE: i32 = 3;
const ACCESS_EXCLUSIVE: i32 = 8;
const DEFAULT_METHOD: u8 = 1;

/// Returns whether this transaction holds the lock that a write of rows takes on the table, or a greater one: ALTER
/// TABLE brings rows, too, by a new partition or by a default.
pub fn writes(table: u32) -> bool {
    let tag = pg_sys::LOCKTAG {
        // SAFETY: a plain read
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: table,
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
        locktag_lockmethodid: DEFAULT_METHOD,
    };
    // SAFETY: looks into the hash table of this process's locks, and does not raise
    let holds = |mode| unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return pg_sys::LockHeldByMe(&tag, mode);
        #[cfg(any(feature = "pg17", feature = "pg18", feature = "pg19"))]
        return pg_sys::LockHeldByMe(&tag, mode, false);
    };
    (ROW_EXCLUSIVE..=ACCESS_EXCLUSIVE).any(holds)
}

/// Refuses what is no table, and a table that the caller may not read.
pub fn require_readable(table: Oid) -> Result<()> {
    // SAFETY: reads the catalog through its caches; the name ends in NUL
    unsafe {
        let name = pg_sys::get_rel_name(table);
        if name.is_null() {
            return Err(Error::NoTable(table.to_u32()).into());
        }
        let kind = pg_sys::get_rel_relkind(table);
        let answer = pg_sys::pg_class_aclcheck(table, pg_sys::GetUserId(), pg_sys::ACL_SELECT as pg_sys::AclMode);
        if answer != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(answer, pg_sys::get_relkind_objtype(kind), name);
        }
        if ![pg_sys::RELKIND_RELATION, pg_sys::RELKIND_PARTITIONED_TABLE].contains(&(kind as u8)) {
            return Err(Error::Unwatchable(text::from_server(CStr::from_ptr(name).to_bytes())).into());
        }
    }
    Ok(())
}
