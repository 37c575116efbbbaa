//! An open table: its index, its scans, and the locks of its rows.

use super::indexes::Indexes;
use super::raw::{self, FORWARD};
use super::tuple::Tuple;
use crate::pg::text::text_datum;
use crate::pg::{catalog, transaction};
use pgrx::Uuid;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use pgrx::pg_sys::{self, Datum, ItemPointerData, Oid, TM_Result};
use std::cell::{Cell, OnceCell};
use std::ffi::CStr;

/// One of our tables that is open. Its lock is held to the end of the transaction.
pub struct Table {
    pub(super) relation: pg_sys::Relation,
    pub(super) key: pg_sys::Relation,
    pub(super) slot: *mut pg_sys::TupleTableSlot,
    /// The memory context of the slot, and of everything that lives as long as the slot.
    context: pg_sys::MemoryContext,
    /// Whether the table belongs to this extension.
    pub(super) ours: bool,
    /// A scan that has ended, and how many keys it takes. To begin a new one would cost as much as finding a row.
    idle: Cell<Option<(pg_sys::IndexScanDesc, usize)>>,
    /// Opened when the first row is written.
    pub(super) indexes: OnceCell<Indexes>,
}

/// The value of a key column.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Text(&'a str),
    Short(i16),
    Int(i32),
    Long(i64),
    Uuid(Uuid),
    Oid(Oid),
    /// This number or a greater one; only as the last column.
    From(i64),
    /// This integer or a greater one; only as the last column.
    IntFrom(i32),
    /// This time or a later one, in microseconds since 2000; only as the last column.
    TimeFrom(i64),
    /// A text after this one; only as the last column.
    After(&'a str),
    /// This text or one before it; only as the last column.
    UpTo(&'a str),
}

/// What a scan sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// What is committed, and what this transaction did.
    Latest,
    /// What the caller's statement reads.
    Caller,
    /// Also the uncommitted changes of other transactions. May miss a row that an update is moving.
    Dirty,
}

/// What another, open transaction is doing to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    None,
    Inserting,
    /// The transaction is changing the row, or deleting it.
    Changing,
}

/// The result of a try to lock a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    Mine,
    /// Another transaction has the row locked.
    Busy,
    /// The row has changed since it was found.
    Changed,
}

impl Table {
    pub fn open(table: &'static CStr, key: &'static CStr) -> Table {
        transaction::assert_may_raise();
        let (lock, none) = (pg_sys::RowExclusiveLock as i32, std::ptr::null_mut());
        catalog::lock(table);
        let table = catalog::needed(table);
        // SAFETY: in a transaction; null if there is no such table; it was locked above, and is locked again in case
        // that was an earlier one of the same name
        let relation = unsafe { guarded(|| raw::try_table_open(table, lock)) };
        if relation.is_null() {
            catalog::gone();
        }
        // The index is looked up only now. REINDEX makes a new one with another oid; dropping the old one waits for
        // transactions that have the table locked.
        let key = catalog::needed(key);
        // SAFETY: as above
        let (key, slot) = unsafe { guarded(|| (raw::index_open(key, lock), raw::table_slot_create(relation, none))) };
        Table::of(relation, key, slot, true)
    }

    /// Returns a table whose relations are open. The slot has just been made, in the current memory context.
    pub(super) fn of(
        relation: pg_sys::Relation,
        key: pg_sys::Relation,
        slot: *mut pg_sys::TupleTableSlot,
        ours: bool,
    ) -> Table {
        // SAFETY: a plain read
        let context = unsafe { pg_sys::CurrentMemoryContext };
        Table { relation, key, slot, context, ours, idle: Cell::new(None), indexes: OnceCell::new() }
    }

    /// Returns the row at which a scan or a walk stands, or at which the last one stopped.
    pub fn row(&self) -> Tuple {
        Tuple(self.slot)
    }

    /// Returns whether the index has an entry for a key, or for its first columns. Without an entry there is no such
    /// row, whatever the sight. The reason: a moved row gets its new entry before its old version is dead to any
    /// snapshot, and an entry stays until its version is dead to all.
    pub fn has_entry(&self, key: &[Key]) -> bool {
        self.entries(key, 1) > 0
    }

    /// Returns how many entries the index has for a key, or for its first columns, up to `most`. There are at most as
    /// many rows: entries of deleted rows count until they are cleaned away. It reads no rows, which is what makes a
    /// scan slow.
    pub fn entries(&self, key: &[Key], most: usize) -> usize {
        // SAFETY: the scan ends before its keys; its snapshot is never used, as no row is read
        unsafe {
            let scan = self.begin(key, || &raw mut pg_sys::SnapshotAnyData);
            guarded(|| {
                let found = (0..most).take_while(|_| !raw::index_getnext_tid(scan, FORWARD).is_null()).count();
                self.end(scan, key.len());
                found
            })
        }
    }

    /// Returns how many columns the index has. Former versions of the extension have fewer.
    pub fn key_columns(&self) -> usize {
        // SAFETY: the relation is open
        usize::try_from(unsafe { (*(*self.key).rd_att).natts }).unwrap_or(0)
    }

    /// Returns whether at most one row has this key.
    pub(super) fn is_whole(&self, key: &[Key]) -> bool {
        let is_range =
            |key: &Key| matches!(key, Key::From(_) | Key::IntFrom(_) | Key::TimeFrom(_) | Key::After(_) | Key::UpTo(_));
        // SAFETY: the relation is open, and an index
        let is_unique = unsafe { (*(*self.key).rd_index).indisunique };
        is_unique && key.len() == self.key_columns() && !key.iter().any(is_range)
    }

    /// Begins a scan of a key, or of its first columns. The key must outlive the scan. The snapshot is made under the
    /// same boundary.
    pub(super) unsafe fn begin(
        &self,
        key: &[Key],
        snapshot: impl FnOnce() -> pg_sys::Snapshot,
    ) -> pg_sys::IndexScanDesc {
        let (mut keys, none) = ([pg_sys::ScanKeyData::default(); 4], std::ptr::null_mut());
        let mut values = [(0, 0, Datum::null()); 4];
        let count = key.len().min(keys.len());
        for (into, value) in values.iter_mut().zip(key) {
            let equal = pg_sys::BTEqualStrategyNumber;
            *into = match value {
                Key::Text(text) => (equal, pg_sys::F_TEXTEQ, text_datum(text)),
                Key::Short(number) => (equal, pg_sys::F_INT2EQ, Datum::from(*number)),
                Key::Int(number) => (equal, pg_sys::F_INT4EQ, Datum::from(*number)),
                Key::Long(number) => (equal, pg_sys::F_INT8EQ, Datum::from(*number)),
                Key::Uuid(uuid) => (equal, pg_sys::F_UUID_EQ, Datum::from(uuid.as_bytes().as_ptr())),
                Key::Oid(oid) => (equal, pg_sys::F_OIDEQ, Datum::from(*oid)),
                Key::After(text) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_TEXT_GT, text_datum(text)),
                Key::UpTo(text) => (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_TEXT_LE, text_datum(text)),
                Key::From(least) => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT8GE, Datum::from(*least)),
                Key::TimeFrom(least) => {
                    (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_TIMESTAMPTZ_GE, Datum::from(*least))
                }
                Key::IntFrom(least) => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT4GE, Datum::from(*least)),
            };
        }
        // SAFETY: both relations are open; the values match the key's columns (text, integers, uuid), which are sorted
        // by the collations of the index; the scan copies what it keeps of the keys
        unsafe {
            guarded(|| {
                let parts = (1u16..).zip(keys.iter_mut().zip(values)).take(count);
                for (column, (into, (strategy, compare, datum))) in parts {
                    let (any, collation) = (Oid::INVALID, *(*self.key).rd_indcollation.add(usize::from(column) - 1));
                    raw::ScanKeyEntryInitialize(
                        into,
                        0,
                        column as i16,
                        strategy as u16,
                        any,
                        collation,
                        compare.into(),
                        datum,
                    );
                }
                let snapshot = snapshot();
                let scan = match self.idle.take() {
                    Some((idle, keys)) if keys == count => {
                        (*idle).xs_snapshot = snapshot;
                        idle
                    }
                    other => {
                        if let Some((idle, _)) = other {
                            raw::index_endscan(idle);
                        }
                        let former = pg_sys::MemoryContextSwitchTo(self.context);
                        let scan = raw::index_beginscan(self.relation, self.key, snapshot, count as i32);
                        pg_sys::MemoryContextSwitchTo(former);
                        scan
                    }
                };
                raw::index_rescan(scan, keys.as_mut_ptr(), count as i32, none, 0);
                scan
            })
        }
    }

    /// Ends a scan, and keeps it for the next one. The scan releases its pages, and forgets its snapshot.
    pub(super) unsafe fn end(&self, scan: pg_sys::IndexScanDesc, keys: usize) {
        // SAFETY: begun by begin(), with this number of keys; under a boundary of the caller's
        unsafe {
            if let Some((other, _)) = self.idle.take() {
                raw::index_endscan(other);
            }
            (*scan).xs_snapshot = &raw mut pg_sys::SnapshotAnyData;
            raw::index_rescan(scan, std::ptr::null_mut(), keys as i32, std::ptr::null_mut(), 0);
            self.idle.set(Some((scan, keys)));
        }
    }

    /// Locks a row against changes, to the end of the transaction. With `wait`, waits for the transaction that has it
    /// locked.
    pub fn lock(&self, tid: ItemPointerData, wait: bool) -> Locked {
        self.lock_as(tid, pg_sys::LockTupleMode::LockTupleExclusive, wait)
    }

    /// Locks a row in any mode. The table then stands at the locked row.
    pub fn lock_as(&self, tid: ItemPointerData, mode: pg_sys::LockTupleMode::Type, wait: bool) -> Locked {
        let policy = if wait { pg_sys::LockWaitPolicy::LockWaitBlock } else { pg_sys::LockWaitPolicy::LockWaitSkip };
        let mut failure = pg_sys::TM_FailureData::default();
        let mut tid = tid;
        // SAFETY: the relation is open and its access method complete; what PostgreSQL raises inside becomes a panic at
        // the boundary, and no destructor is pending in its closure
        let result = unsafe {
            let method = &*(*self.relation).rd_tableam;
            let command = pg_sys::GetCurrentCommandId(true);
            method.tuple_lock.map(|tuple_lock| {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    tuple_lock(
                        self.relation,
                        &mut tid,
                        &raw mut pg_sys::SnapshotAnyData,
                        self.slot,
                        command,
                        mode,
                        policy,
                        0,
                        &mut failure,
                    )
                })
            })
        };
        result.map_or(Locked::Changed, locked)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // When PostgreSQL has raised, its resource owner closes what is open.
        if !std::thread::panicking() {
            // SAFETY: opened by open()
            unsafe {
                if let Some(indexes) = self.indexes.take() {
                    indexes.close();
                }
                let idle = self.idle.take();
                guarded(|| {
                    if let Some((scan, _)) = idle {
                        raw::index_endscan(scan);
                    }
                    raw::ExecDropSingleTupleTableSlot(self.slot);
                    raw::index_close(self.key, pg_sys::NoLock as i32);
                    raw::table_close(self.relation, pg_sys::NoLock as i32);
                });
            }
        }
    }
}

pub(super) fn locked(result: TM_Result::Type) -> Locked {
    match result {
        TM_Result::TM_Ok => Locked::Mine,
        TM_Result::TM_WouldBlock | TM_Result::TM_BeingModified => Locked::Busy,
        _ => Locked::Changed,
    }
}
