//! PostgreSQL's functions without pgrx's boundary. pgrx puts one around each function: there, what PostgreSQL raises
//! becomes a panic. The boundary costs more than many of these functions do. Code that calls several in a row puts one
//! boundary around all of them, and has nothing with a destructor inside.

use pgrx::pg_sys::{
    AttrNumber, Datum, GlobalVisState, IndexScanDesc, ItemPointer, LOCKMODE, List, Oid, RegProcedure, Relation,
    ScanDirection, ScanKey, Snapshot, StrategyNumber, TupleTableSlot,
};
use std::ffi::c_int;

pub const FORWARD: ScanDirection::Type = ScanDirection::ForwardScanDirection;

unsafe extern "C-unwind" {
    pub fn try_table_open(table: Oid, lock: LOCKMODE) -> Relation;
    pub fn table_close(table: Relation, lock: LOCKMODE);
    pub fn index_open(index: Oid, lock: LOCKMODE) -> Relation;
    pub fn index_close(index: Relation, lock: LOCKMODE);
    pub fn table_slot_create(table: Relation, list: *mut *mut List) -> *mut TupleTableSlot;
    pub fn ExecDropSingleTupleTableSlot(slot: *mut TupleTableSlot);
    pub fn GetActiveSnapshot() -> Snapshot;
    pub fn GetLatestSnapshot() -> Snapshot;
    pub fn RegisterSnapshot(snapshot: Snapshot) -> Snapshot;
    pub fn UnregisterSnapshot(snapshot: Snapshot);
    pub fn GlobalVisTestFor(relation: Relation) -> *mut GlobalVisState;
    pub fn ScanKeyEntryInitialize(
        key: ScanKey,
        flags: c_int,
        column: AttrNumber,
        strategy: StrategyNumber,
        subtype: Oid,
        collation: Oid,
        procedure: RegProcedure,
        value: Datum,
    );
    pub fn index_rescan(scan: IndexScanDesc, keys: ScanKey, count: c_int, orders: ScanKey, order_count: c_int);
    pub fn index_getnext_tid(scan: IndexScanDesc, direction: ScanDirection::Type) -> ItemPointer;
    pub fn index_getnext_slot(scan: IndexScanDesc, direction: ScanDirection::Type, slot: *mut TupleTableSlot) -> bool;
    pub fn index_endscan(scan: IndexScanDesc);
}

/// # Safety
/// Both relations are open, and the snapshot outlives the scan.
pub unsafe fn index_beginscan(table: Relation, index: Relation, snapshot: Snapshot, keys: c_int) -> IndexScanDesc {
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
    unsafe extern "C-unwind" {
        fn index_beginscan(
            table: Relation,
            index: Relation,
            snapshot: Snapshot,
            keys: c_int,
            orders: c_int,
        ) -> IndexScanDesc;
    }
    #[cfg(feature = "pg18")]
    unsafe extern "C-unwind" {
        fn index_beginscan(
            table: Relation,
            index: Relation,
            snapshot: Snapshot,
            instrument: *mut pgrx::pg_sys::IndexScanInstrumentation,
            keys: c_int,
            orders: c_int,
        ) -> IndexScanDesc;
    }
    #[cfg(feature = "pg19")]
    unsafe extern "C-unwind" {
        fn index_beginscan(
            table: Relation,
            index: Relation,
            snapshot: Snapshot,
            instrument: *mut pgrx::pg_sys::IndexScanInstrumentation,
            keys: c_int,
            orders: c_int,
            flags: u32,
        ) -> IndexScanDesc;
    }
    // SAFETY: as the caller promises; no instrumentation, and none of the flags
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        return index_beginscan(table, index, snapshot, keys, 0);
        #[cfg(feature = "pg18")]
        return index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0);
        #[cfg(feature = "pg19")]
        return index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0, 0);
    }
}
