//! Writes rows by their address. A statement would cost many times as much. The table must be plain, as we made it:
//! then only the row and its index entries must be written. A caller first asks whether the table is plain, and uses a
//! statement if not. Claims of items do not ask, as they have no such statement: a trigger that an administrator adds
//! to the table of items sees no claims.

use super::indexes::{Indexes, Version};
use super::open::{Key, Locked, Sight, Table, locked};
use super::tuple::Tuple;
use pgrx::pg_sys::{self, Datum, ItemPointerData, TM_Result};

/// A column, counted from 1, and its new value.
pub type Change = (i32, Option<Datum>);

impl Table {
    /// Returns whether rows may be added or changed by address, without a statement: the table has nothing but indexes.
    /// An administrator may have added a trigger, for example. The administrator's command waits for transactions that
    /// have opened the table before.
    pub fn is_plain(&self) -> bool {
        // SAFETY: the relation is open; the list is ours
        unsafe {
            let (class, constraints) = (&*(*self.relation).rd_rel, (*(*self.relation).rd_att).constr);
            let checked =
                !constraints.is_null() && ((*constraints).num_check > 0 || (*constraints).has_generated_stored);
            !checked && !class.relhastriggers && !class.relhasrules && !class.relrowsecurity
        }
    }

    /// Returns whether the table has exactly this many columns. An administrator may have added one; its number stays
    /// taken even after it is dropped.
    pub fn has_columns(&self, count: usize) -> bool {
        // SAFETY: the relation is open
        usize::try_from(unsafe { (*(*self.relation).rd_att).natts }) == Ok(count)
    }

    /// Adds a row, if the table is plain and has exactly these columns. Returns whether it did.
    #[must_use]
    pub fn try_insert(&self, columns: &[Option<Datum>]) -> bool {
        if !self.has_columns(columns.len()) || !self.is_plain() {
            return false;
        }
        let mut nulls: Vec<bool> = columns.iter().map(Option::is_none).collect();
        let mut values: Vec<Datum> = columns.iter().map(|column| column.unwrap_or(Datum::from(0))).collect();
        // SAFETY: the values are of the columns' types, and as many; the table is plain, so a row needs nothing else
        unsafe {
            let new = pg_sys::heap_form_tuple((*self.relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::simple_heap_insert(self.relation, new);
            self.index(new, Version::First);
            pg_sys::heap_freetuple(new);
            pg_sys::CommandCounterIncrement();
        }
        true
    }

    /// Changes columns of the row at which the last scan stopped. Waits for a transaction that has the row locked.
    /// Returns whether it still was the same row. For a plain table.
    pub fn update(&self, changes: &[Change]) -> bool {
        self.change(changes) == Locked::Mine
    }

    /// Changes columns of the row at which a scan stands, or at which the last one stopped, without waiting.
    pub fn try_update(&self, changes: &[Change]) -> Locked {
        // heap_update() has an argument for this, but asserts that the argument is not used while another transaction
        // has the row locked.
        match self.lock(self.row().tid(), false) {
            Locked::Mine => self.change(changes),
            other => other,
        }
    }

    fn change(&self, changes: &[Change]) -> Locked {
        let mut columns: Vec<i32> = changes.iter().map(|(column, _)| *column).collect();
        let mut nulls: Vec<bool> = changes.iter().map(|(_, value)| value.is_none()).collect();
        let mut values: Vec<Datum> = changes.iter().map(|(_, value)| value.unwrap_or(Datum::from(0))).collect();
        let (mut should_free, count) = (false, columns.len() as i32);
        // SAFETY: the values are of the columns' types, and as many; the table is plain, so a change needs nothing else
        unsafe {
            let old = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &mut should_free);
            let new = pg_sys::heap_modify_tuple_by_cols(
                old,
                (*self.relation).rd_att,
                count,
                columns.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            let (result, summaries) = heap_update(self.relation, &mut (*old).t_self, new);
            let result = locked(result);
            let moved = u32::from((*(*new).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE == 0;
            if result == Locked::Mine && (moved || summaries) {
                self.index(new, if moved { Version::Moved } else { Version::InPlace });
            }
            pg_sys::heap_freetuple(new);
            pg_sys::CommandCounterIncrement();
            result
        }
    }

    /// Deletes the rows of a key, or of its first columns; waits for transactions that have one of them locked. Returns
    /// how many. Returns `None` if the table is not plain: then a statement must do it.
    pub fn delete_rows(&self, key: &[Key]) -> Option<u64> {
        self.each_row(key, |_| Some(self.delete(true)))
    }

    /// Changes columns of the rows of a key, or of its first columns, as `changes` says. A row for which `changes`
    /// returns `None` stays as it is.
    pub fn update_rows(&self, key: &[Key], changes: impl Fn(&Tuple) -> Option<Vec<Change>>) -> Option<u64> {
        self.each_row(key, |row| Some(self.change(&changes(row)?)))
    }

    fn each_row(&self, key: &[Key], write: impl Fn(&Tuple) -> Option<Locked>) -> Option<u64> {
        if !self.is_plain() {
            return None;
        }
        let (mut rows, mut count) = (Vec::new(), 0);
        let mut add = |row: &Tuple, only| {
            rows.push(row.tid());
            only
        };
        if self.is_whole(key) {
            self.find(Sight::Latest, key, |row, _| add(row, Some(())));
        } else {
            self.scan(Sight::Latest, key, |row, _| add(row, None::<()>));
        }
        for tid in rows {
            pgrx::check_for_interrupts!();
            match self.lock(tid, true) {
                Locked::Mine => count += u64::from(write(&self.row()).is_some()),
                // Another transaction has changed the row meanwhile: its new version has another address, or there is
                // none.
                Locked::Busy | Locked::Changed => return Some(count + self.each_row(key, write)?),
            }
        }
        Some(count)
    }

    /// Deletes the row at which a scan stands, or at which the last one stopped, unless another transaction has it
    /// locked.
    pub fn try_delete(&self) -> Locked {
        match self.delete(false) {
            // The lock may be this transaction's own.
            Locked::Busy => self.try_delete_at(self.row().tid()),
            known => known,
        }
    }

    /// Deletes the row at an address, unless another transaction has it locked. If this transaction may have locked the
    /// row, call this at once: the first try of [`Table::try_delete`] would take that lock for another's.
    pub fn try_delete_at(&self, tid: ItemPointerData) -> Locked {
        match self.lock(tid, false) {
            Locked::Mine => self.delete(true),
            other => other,
        }
    }

    fn delete(&self, wait: bool) -> Locked {
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the slot holds a row of the table, which is a heap without triggers
        unsafe {
            let (command, tid) = (pg_sys::GetCurrentCommandId(true), &raw mut (*self.slot).tts_tid);
            let crosscheck = std::ptr::null_mut();
            #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
            let result = pg_sys::heap_delete(self.relation, tid, command, crosscheck, wait, &mut failure, false);
            #[cfg(feature = "pg19")]
            let result = pg_sys::heap_delete(self.relation, tid, command, 0, crosscheck, wait, &mut failure);
            pg_sys::CommandCounterIncrement();
            locked(result)
        }
    }

    /// Adds a version of a row to all indexes of the table: the key, and the indexes that an administrator has made. If
    /// an index is being rebuilt, it adds the version to both the old and the new one.
    unsafe fn index(&self, tuple: pg_sys::HeapTuple, version: Version) {
        let indexes = self.indexes.get_or_init(|| {
            // SAFETY: the relation is open, and its slot lives as long
            unsafe { Indexes::open(self.relation, self.slot) }
        });
        // SAFETY: the tuple is one of the table's
        unsafe { indexes.add(self.relation, self.slot, tuple, version) }
    }
}

/// Replaces a row by another version of it. Also returns whether indexes that do not tell the rows of a page apart must
/// learn of the new version.
unsafe fn heap_update(
    table: pg_sys::Relation,
    old: pg_sys::ItemPointer,
    new: pg_sys::HeapTuple,
) -> (TM_Result::Type, bool) {
    let (mut failure, mut mode) = (pg_sys::TM_FailureData::default(), pg_sys::LockTupleMode::LockTupleNoKeyExclusive);
    let no_crosscheck = std::ptr::null_mut();
    // SAFETY: the relation is open, and a heap
    #[cfg(feature = "pg15")]
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        (pg_sys::heap_update(table, old, new, command, no_crosscheck, true, &mut failure, &mut mode), false)
    }
    // SAFETY: as above
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18", feature = "pg19"))]
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        let mut indexes = pg_sys::TU_UpdateIndexes::TU_None;
        #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
        let result =
            pg_sys::heap_update(table, old, new, command, no_crosscheck, true, &mut failure, &mut mode, &mut indexes);
        #[cfg(feature = "pg19")]
        let result = pg_sys::heap_update(
            table,
            old,
            new,
            command,
            0,
            no_crosscheck,
            true,
            &mut failure,
            &mut mode,
            &mut indexes,
        );
        (result, indexes == pg_sys::TU_UpdateIndexes::TU_Summarizing)
    }
}
