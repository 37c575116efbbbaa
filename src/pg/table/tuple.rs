//! A row as a scan shows it: its columns, and the transactions that have made and changed this version of the row.

use crate::pg::catalog;
use crate::pg::required::{self, Column};
use crate::pg::text::from_server;
use crate::pg::transaction;
use pgrx::FromDatum;
use pgrx::pg_sys::{self, Datum, ItemPointerData, TransactionId};
use std::ffi::CStr;

/// The row at which a scan stands.
pub struct Tuple(pub(super) *mut pg_sys::TupleTableSlot);

impl Tuple {
    pub fn tid(&self) -> ItemPointerData {
        // SAFETY: the slot holds a row while the scan shows it
        unsafe { (*self.0).tts_tid }
    }

    /// Returns the transaction that made this version of the row.
    pub fn made_by(&self) -> TransactionId {
        // SAFETY: as above; our tables are heaps
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.0, false, &mut should_free);
            let header = &*(*tuple).t_data;
            if u32::from(header.t_infomask) & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN {
                pg_sys::FrozenTransactionId
            } else {
                header.t_choice.t_heap.t_xmin
            }
        }
    }

    /// Returns whether this transaction has made this version of the row.
    pub fn is_mine(&self) -> bool {
        transaction::is_mine(self.made_by())
    }

    /// Returns whether the caller's statement sees this version of the row. Under READ COMMITTED it does, as each
    /// statement reads anew.
    pub fn is_seen(&self) -> bool {
        transaction::sees(self.made_by())
    }

    /// Returns whether a transaction has changed or deleted this version of the row, or has tried to. Nothing else
    /// tells this about a row that is being inserted.
    pub fn is_marked(&self) -> bool {
        // SAFETY: as above
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.0, false, &mut should_free);
            let mask = u32::from((*(*tuple).t_data).t_infomask);
            mask & pg_sys::HEAP_XMAX_INVALID == 0 && mask & pg_sys::HEAP_XMAX_LOCK_ONLY == 0
        }
    }

    /// Returns the transaction that has changed or deleted this version of the row, or has tried to. A transaction that
    /// has only locked the row does not count.
    pub(super) fn changed_by(&self) -> Option<TransactionId> {
        // SAFETY: as above; PostgreSQL looks up the member of a multixact that has changed the row
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.0, false, &mut should_free);
            let header = &*(*tuple).t_data;
            let mask = u32::from(header.t_infomask);
            if mask & (pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_LOCK_ONLY) != 0 {
                return None;
            }
            Some(if mask & pg_sys::HEAP_XMAX_IS_MULTI == 0 {
                header.t_choice.t_heap.t_xmax
            } else {
                pg_sys::HeapTupleGetUpdateXid((*tuple).t_data)
            })
        }
    }

    /// Returns whether another, open transaction has deleted the row. A lock or a change of the row does not count.
    pub fn is_being_deleted(&self) -> bool {
        let Some(by) = self.changed_by() else { return false };
        // SAFETY: as above
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.0, false, &mut should_free);
            let [here, next] = [(*tuple).t_self, (*(*tuple).t_data).t_ctid].map(pgrx::itemptr::item_pointer_get_both);
            here == next && pg_sys::TransactionIdIsInProgress(by)
        }
    }

    /// Returns a column, counted from 1. Returns `None` if the column is null, or a former version of the extension
    /// lacks it.
    pub fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        // SAFETY: as above; the caller reads the type that the schema declares, and copies the value
        unsafe {
            if usize::from((*self.0).tts_nvalid.cast_unsigned()) < column {
                if column > self.columns() {
                    return None;
                }
                // Reads all columns at once: each call crosses a boundary between Rust and PostgreSQL, which costs more
                // than a column.
                pg_sys::slot_getsomeattrs_int(self.0, (*(*self.0).tts_tupleDescriptor).natts);
            }
            T::from_datum(*(*self.0).tts_values.add(column - 1), *(*self.0).tts_isnull.add(column - 1))
        }
    }

    /// Returns a column that the schema declares NOT NULL. Raises XX001 if it is null.
    pub fn required<T: Column>(&self, column: usize) -> T {
        self.get(column).unwrap_or_else(|| self.missing(column))
    }

    /// Returns a NOT NULL column; `before` if the table is of a former version, which lacks the column.
    pub fn added<T: Column>(&self, column: usize, before: T) -> T {
        match self.get(column) {
            Some(value) => value,
            None if column > self.columns() => before,
            None => self.missing(column),
        }
    }

    /// Returns how many columns the table has.
    fn columns(&self) -> usize {
        // SAFETY: the slot knows the description of its table
        usize::try_from(unsafe { (*(*self.0).tts_tupleDescriptor).natts }).unwrap_or(0)
    }

    #[cold]
    fn missing<T: Column>(&self, column: usize) -> T {
        // SAFETY: the slot holds a row of a table
        let table = catalog::table_name(unsafe { (*self.0).tts_tableOid });
        // SAFETY: the number is checked against the description's number of columns
        let name = unsafe {
            let attribute = (1..=self.columns()).contains(&column);
            let name = attribute.then(|| pg_sys::SPI_fname((*self.0).tts_tupleDescriptor, column as i32));
            name.map_or_else(|| column.to_string(), |name| from_server(CStr::from_ptr(name).to_bytes()))
        };
        required::missing(table.unwrap_or_default(), name)
    }

    /// Returns how many bytes a column of variable length takes before compression. Does not fetch the value.
    pub fn size(&self, column: usize) -> usize {
        // SAFETY: the column has such a type, as the caller knows from the schema
        self.get::<Datum>(column).map_or(0, |value| unsafe { pg_sys::toast_raw_datum_size(value) })
    }

    /// Returns whether a multirange column has no range.
    pub fn has_no_range(&self, column: usize) -> bool {
        // SAFETY: the column is a multirange, as the caller knows from the schema
        let is_empty = |ranges| unsafe { pgrx::direct_function_call(pg_sys::multirange_empty, &[Some(ranges)]) };
        self.get::<Datum>(column).and_then(is_empty).unwrap_or_else(|| self.missing(column))
    }
}
