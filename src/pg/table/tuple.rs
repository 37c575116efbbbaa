//! A row as a scan shows it: its columns, and which transactions have made and changed this version of it.

use pgrx::FromDatum;
use pgrx::pg_sys::{self, Datum, ItemPointerData, TransactionId};

/// A row that a scan stands at.
pub struct Tuple(pub(super) *mut pg_sys::TupleTableSlot);

impl Tuple {
    pub fn tid(&self) -> ItemPointerData {
        // SAFETY: the slot holds a row for as long as the scan shows it
        unsafe { (*self.0).tts_tid }
    }

    /// The transaction that made this version of the row.
    pub fn made_by(&self) -> TransactionId {
        // SAFETY: as above; a table of ours is a heap
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

    /// Whether this transaction has made this version of the row.
    pub fn is_mine(&self) -> bool {
        // SAFETY: reads what this process keeps of its transaction
        unsafe { pg_sys::TransactionIdIsCurrentTransactionId(self.made_by()) }
    }

    /// Whether what the caller's statement reads includes this version of the row. Under READ COMMITTED each statement
    /// reads anew.
    pub fn is_seen(&self) -> bool {
        let made_by = self.made_by();
        // SAFETY: plain reads, in a function that a statement has called
        unsafe {
            pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ as i32
                || pg_sys::TransactionIdIsCurrentTransactionId(made_by)
                || !pg_sys::XidInMVCCSnapshot(made_by, pg_sys::GetActiveSnapshot())
        }
    }

    /// Whether somebody has changed or deleted this version of the row, or has tried to: a row that is being inserted
    /// tells nothing else of it.
    pub fn is_marked(&self) -> bool {
        // SAFETY: as above
        unsafe {
            let mut should_free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.0, false, &mut should_free);
            let mask = u32::from((*(*tuple).t_data).t_infomask);
            mask & pg_sys::HEAP_XMAX_INVALID == 0 && mask & pg_sys::HEAP_XMAX_LOCK_ONLY == 0
        }
    }

    /// The transaction that has changed or deleted this version of the row, or has tried to; not one that has only
    /// locked it.
    pub(super) fn changed_by(&self) -> Option<TransactionId> {
        // SAFETY: as above; of a multixact PostgreSQL looks up the member that has changed the row
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

    /// Whether an open transaction, another one, has deleted the row: not locked it, nor changed it.
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

    /// A column, counted from 1.
    pub fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        // SAFETY: as above; the caller reads the type that the schema declares, and copies it
        unsafe {
            if usize::from((*self.0).tts_nvalid.cast_unsigned()) < column {
                let all = (*(*self.0).tts_tupleDescriptor).natts;
                if column > usize::try_from(all).unwrap_or(0) {
                    return None;
                }
                // All at once: each call is a boundary between Rust and PostgreSQL, which costs more than a column
                // does.
                pg_sys::slot_getsomeattrs_int(self.0, all);
            }
            T::from_datum(*(*self.0).tts_values.add(column - 1), *(*self.0).tts_isnull.add(column - 1))
        }
    }

    /// How many bytes a column takes whose values differ in length, before compression; without fetching it.
    pub fn size(&self, column: usize) -> usize {
        // SAFETY: the column is of such a type, as the caller knows from the schema
        self.get::<Datum>(column).map_or(0, |value| unsafe { pg_sys::toast_raw_datum_size(value) })
    }

    /// Whether a column that is a multirange has no range.
    pub fn has_no_range(&self, column: usize) -> bool {
        // SAFETY: the column is a multirange, as the caller knows from the schema
        let empty = self
            .get::<Datum>(column)
            .map(|ranges| unsafe { pgrx::direct_function_call::<bool>(pg_sys::multirange_empty, &[Some(ranges)]) });
        empty.flatten().unwrap_or(true)
    }
}
