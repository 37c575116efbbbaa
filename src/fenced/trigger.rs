//! What the triggers of fenced tables ask: does a pass of this transaction stand?
//!
//! A pass is what [`crate::lease::fence::check`] has noted in [`crate::seam`]. It holds the lease to the end of the
//! transaction, so one that stands now is current at commit, and there is nothing to be read but that list. It is gone
//! with its savepoint; it ended when this transaction gave the lease away itself, or ended the session.
//!
//! By a column, this is for each row that is written: what was found is remembered until the list changes.

use crate::base::error::{Error, Result};
use crate::base::settings;
use crate::lease::declaration;
use crate::lease::row::Leases;
use crate::pg::text::from_server;
use crate::seam;
use crate::shmem::shared;
use pgrx::pg_sys::{self, Datum, Oid, TriggerData, TupleTableSlot};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::OnceLock;

/// What stands by a pass: a resource, as the trigger names it, and slots of it.
struct Passed {
    epoch: u64,
    resource: Vec<u8>,
    slots: Vec<Option<i32>>,
}

thread_local! {
    static PASSED: RefCell<Passed> =
        const { RefCell::new(Passed { epoch: 0, resource: Vec::new(), slots: Vec::new() }) };
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_eskit_lease_require_fence() -> &'static pg_sys::Pg_finfo_record {
    static RECORD: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &RECORD
}

/// The trigger function, which sql/functions.sql declares. (pgrx's own kind of trigger has no way to raise an error
/// with its SQLSTATE.)
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn eskit_lease_require_fence(call: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: PostgreSQL calls this with what it calls functions with; by the tag it is a trigger's
    let data = unsafe {
        let context = (*call).context;
        let is_trigger = !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData;
        if is_trigger { context.cast::<TriggerData>().as_ref() } else { None }
    };
    let answer = match data {
        // SAFETY: as above
        Some(data) => unsafe { require(call, data) },
        None => Err(Error::NoFenceTrigger.into()),
    };
    if let Err(report) = answer {
        report.report(pgrx::PgLogLevel::ERROR);
    }
    Datum::from(0)
}

unsafe fn require(call: pg_sys::FunctionCallInfo, data: &TriggerData) -> Result<()> {
    // SAFETY: a trigger has as many arguments as it says, and each ends in NUL
    unsafe {
        let trigger = &*data.tg_trigger;
        let argument = |i: usize| CStr::from_ptr(*trigger.tgargs.add(i));
        match trigger.tgnargs {
            _ if data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_AFTER => {
                Err(Error::NoFenceTrigger.into())
            }
            _ if is_replicated(data) => Ok(()),
            1 => hold(data, argument(0), None),
            2 => Rows { data, resource: argument(0), name: argument(1) }.hold(call),
            _ => Err(Error::NoFenceTrigger.into()),
        }
    }
}

/// Whether transition tables have all rows. Before these minor versions a MERGE and another statement on the same
/// table, in one query, could leave one of them without ("Fix trigger transition table capture for MERGE in CTE
/// queries", PostgreSQL's release notes).
pub fn sees_all_rows() -> bool {
    static SEES: OnceLock<bool> = OnceLock::new();
    *SEES.get_or_init(|| {
        // SAFETY: a setting of every server, a string that ends in NUL
        let version = unsafe { pg_sys::GetConfigOption(c"server_version_num".as_ptr(), false, false) };
        // SAFETY: as above
        let version = unsafe { CStr::from_ptr(version) }.to_str().ok().and_then(|version| version.parse().ok());
        version.is_some_and(|version: i32| has_whole_transition_tables(version))
    })
}

fn has_whole_transition_tables(version: i32) -> bool {
    let since = match version / 10_000 {
        15 => 16,
        16 => 12,
        17 => 8,
        18 => 2,
        _ => 0,
    };
    version % 10_000 >= since
}

/// What an event has written, of a table whose column tells the partitions.
struct Rows<'a> {
    data: &'a TriggerData,
    resource: &'a CStr,
    name: &'a CStr,
}

impl Rows<'_> {
    unsafe fn hold(&self, call: pg_sys::FunctionCallInfo) -> Result<()> {
        let data = self.data;
        let operation = data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        // SAFETY: the slots and the transition tables hold the rows of the event, as far as they are there
        unsafe {
            if operation == pg_sys::TRIGGER_EVENT_TRUNCATE {
                return Err(Error::TruncateFenced {
                    table: table_name(data),
                    column: from_server(self.name.to_bytes()),
                    resource: from_server(self.resource.to_bytes()),
                }
                .into());
            }
            if data.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0 {
                let column = kept_column(call, data, self.name)?;
                self.hold_row(data.tg_trigslot, column)?;
                if operation == pg_sys::TRIGGER_EVENT_UPDATE {
                    self.hold_row(data.tg_newslot, column)?;
                }
                return Ok(());
            }
            let column = column(data, self.name)?;
            if operation != pg_sys::TRIGGER_EVENT_INSERT {
                self.hold_table(data.tg_oldtable, column)?;
            }
            if operation != pg_sys::TRIGGER_EVENT_DELETE {
                self.hold_table(data.tg_newtable, column)?;
            }
            Ok(())
        }
    }

    unsafe fn hold_row(&self, row: *mut TupleTableSlot, column: Column) -> Result<()> {
        // SAFETY: as the caller says
        unsafe { hold(self.data, self.resource, Some(partition(self.data, row, self.name, column)?)) }
    }

    unsafe fn hold_table(&self, rows: *mut pg_sys::Tuplestorestate, column: Column) -> Result<()> {
        if rows.is_null() || !sees_all_rows() {
            return Err(Error::NoFenceTrigger.into());
        }
        // SAFETY: as the caller says. Others read the transition table too, each from a place of its own. When
        // PostgreSQL raises, the slot goes with its memory.
        unsafe {
            let row = pg_sys::MakeSingleTupleTableSlot(
                (*self.data.tg_relation).rd_att,
                &raw const pg_sys::TTSOpsMinimalTuple,
            );
            let place = pg_sys::tuplestore_alloc_read_pointer(rows, pg_sys::EXEC_FLAG_REWIND as i32);
            pg_sys::tuplestore_select_read_pointer(rows, place);
            pg_sys::tuplestore_rescan(rows);
            let mut held = Ok(());
            while held.is_ok() && pg_sys::tuplestore_gettupleslot(rows, true, false, row) {
                pg_sys::check_for_interrupts!();
                held = self.hold_row(row, column);
            }
            pg_sys::ExecDropSingleTupleTableSlot(row);
            held
        }
    }
}

unsafe fn table_name(data: &TriggerData) -> String {
    // SAFETY: the relation is open, and its name ends in NUL
    unsafe { from_server(CStr::from_ptr((*(*data.tg_relation).rd_rel).relname.data.as_ptr()).to_bytes()) }
}

/// How an integer of this type is read from its datum.
pub fn integer(is: Oid) -> Option<fn(Datum) -> i64> {
    // SAFETY: reads the catalog through its cache, for types that are not built in
    let is = if is.to_u32() < pg_sys::FirstNormalObjectId { is } else { unsafe { pg_sys::getBaseType(is) } };
    match is {
        pg_sys::INT2OID => Some(|datum| i64::from(datum.value() as i16)),
        pg_sys::INT4OID => Some(|datum| i64::from(datum.value() as i32)),
        pg_sys::INT8OID => Some(|datum| datum.value() as i64),
        _ => None,
    }
}

/// A column that tells the partition.
#[derive(Clone, Copy)]
struct Column {
    number: i32,
    read: fn(Datum) -> i64,
}

/// The column of this name.
unsafe fn column(data: &TriggerData, name: &CStr) -> Result<Column> {
    // SAFETY: the relation is open
    unsafe {
        let columns = (*data.tg_relation).rd_att;
        let number = pg_sys::SPI_fnumber(columns, name.as_ptr());
        // It may have been renamed or dropped, or be another one of that name.
        let read = if number > 0 { integer(pg_sys::SPI_gettypeid(columns, number)) } else { None };
        match read {
            Some(read) => Ok(Column { number, read }),
            None => Err(Error::ColumnGone { table: table_name(data), column: from_server(name.to_bytes()) }.into()),
        }
    }
}

/// The same, looked up once for all rows of a statement, which no change of the table comes into: kept with the call's
/// function.
unsafe fn kept_column(call: pg_sys::FunctionCallInfo, data: &TriggerData, name: &CStr) -> Result<Column> {
    // SAFETY: what is kept was put there below, for this trigger; its memory lives as long as it
    unsafe {
        let function = (*call).flinfo;
        if let Some(known) = (*function).fn_extra.cast::<Column>().as_ref() {
            return Ok(*known);
        }
        let found = column(data, name)?;
        let kept = pg_sys::MemoryContextAlloc((*function).fn_mcxt, size_of::<Column>()).cast::<Column>();
        kept.write(found);
        (*function).fn_extra = kept.cast();
        Ok(found)
    }
}

/// The value of a column in a row. For a column at a fixed place this calls nothing of PostgreSQL's, where the row is
/// as the table or a transition table has it: it is asked for each.
unsafe fn value(row: *mut TupleTableSlot, number: i32) -> Option<Datum> {
    let at = (number - 1) as usize;
    // SAFETY: the slot holds a row with this column; by its operations it is of the kind that has a tuple
    unsafe {
        if i32::from((*row).tts_nvalid) < number {
            let is = |kind: *const pg_sys::TupleTableSlotOps| std::ptr::eq((*row).tts_ops, kind);
            let tuple = if is(&raw const pg_sys::TTSOpsBufferHeapTuple) {
                (*row.cast::<pg_sys::BufferHeapTupleTableSlot>()).base.tuple
            } else if is(&raw const pg_sys::TTSOpsMinimalTuple) {
                (*row.cast::<pg_sys::MinimalTupleTableSlot>()).tuple
            } else {
                std::ptr::null_mut()
            };
            if !tuple.is_null() {
                let mut is_null = false;
                let value = pg_sys::heap_getattr(tuple, number, (*row).tts_tupleDescriptor, &mut is_null);
                return (!is_null).then_some(value);
            }
            pg_sys::slot_getsomeattrs_int(row, number);
        }
        (!*(*row).tts_isnull.add(at)).then(|| *(*row).tts_values.add(at))
    }
}

/// The partition that a row belongs to.
unsafe fn partition(data: &TriggerData, row: *mut TupleTableSlot, name: &CStr, column: Column) -> Result<i32> {
    // SAFETY: as the caller says
    match unsafe { value(row, column.number) } {
        // A number that is no partition's has no owner.
        Some(value) => Ok(i32::try_from((column.read)(value)).unwrap_or(-1)),
        None => {
            // SAFETY: as the caller says
            let table = unsafe { table_name(data) };
            Err(Error::PartitionNull { table, column: from_server(name.to_bytes()) }.into())
        }
    }
}

/// Raises unless a pass for the resource stands; `slot`: for this slot of it.
unsafe fn hold(data: &TriggerData, resource: &CStr, slot: Option<i32>) -> Result<()> {
    let bytes = resource.to_bytes();
    let known = PASSED.with_borrow(|passed| {
        passed.epoch == seam::epoch() && passed.resource == bytes && passed.slots.contains(&slot)
    });
    if known {
        return Ok(());
    }
    shared()?;
    let name = from_server(bytes);
    let (standing, given_away) = seam::passes(&name, slot);
    if standing.iter().any(|fence| !seam::ends_sessions() || is_kept(&name, *fence)) {
        remember(bytes, slot);
        return Ok(());
    }
    // The connection's role counts, not the function's owner: a superuser's function exempts no other role.
    // SAFETY: reads the catalog through its cache
    if !settings::FENCE_SUPERUSERS.get() && unsafe { pg_sys::superuser_arg(pg_sys::GetOuterUserId()) } {
        return Ok(());
    }
    let given_away = given_away || !standing.is_empty();
    // SAFETY: as the caller says
    let table = unsafe { table_name(data) };
    let partitions = slot.and_then(|_| declaration::of(&name)).map(|group| group.slots);
    Err(Error::FenceRequired { table, resource: name, partition: slot, partitions, given_away }.into())
}

/// Whether logical replication itself runs the statement, on a table for whose statements its triggers are: a first
/// copy or a TRUNCATE. It passes, as the rows do that are applied later, for which no statement trigger fires.
unsafe fn is_replicated(data: &TriggerData) -> bool {
    // SAFETY: the relation is open; the rest are plain reads. Of another trigger, which may do anything, the depth is
    // greater.
    unsafe {
        !pg_sys::MyBgworkerEntry.is_null()
            && pg_sys::IsLogicalWorker()
            && data.tg_event & pg_sys::TRIGGER_EVENT_ROW == 0
            && !(*(*data.tg_relation).rd_rel).relispartition
            && (*(*data.tg_relation).rd_rel).relkind as u8 == pg_sys::RELKIND_RELATION
            && pg_sys::pg_trigger_depth(std::ptr::null_mut()).value() == 1
            && is_subscribed((*data.tg_relation).rd_id)
    }
}

/// Whether a subscription brings the table: what an expression of another one does while that is replicated is no part
/// of it.
unsafe fn is_subscribed(table: Oid) -> bool {
    // SAFETY: reads the catalog through its cache; the list is released once
    unsafe {
        let (key, none) = (Datum::from(table), Datum::from(0));
        let list =
            pg_sys::SearchSysCacheList(pg_sys::SysCacheIdentifier::SUBSCRIPTIONRELMAP as i32, 1, key, none, none);
        let found = (*list).n_members > 0;
        pg_sys::ReleaseCatCacheList(list);
        found
    }
}

fn remember(resource: &[u8], slot: Option<i32>) {
    let epoch = seam::epoch();
    PASSED.with_borrow_mut(|passed| {
        if passed.epoch != epoch || passed.resource != resource {
            *passed = Passed { epoch, resource: resource.to_vec(), slots: Vec::new() };
        }
        passed.slots.push(slot);
    });
}

/// Whether this transaction does not end the session that has the lease. (It may have moved it into another's grace.)
fn is_kept(resource: &str, fence: i64) -> bool {
    let session = Leases::open().by_fence(resource, fence).and_then(|row| row.session);
    session.is_some_and(|session| !seam::has_ended(session))
}

#[cfg(test)]
mod tests {
    use super::has_whole_transition_tables;

    #[test]
    fn old_minor_versions_are_told_apart() {
        let whole = |version| has_whole_transition_tables(version);
        assert!([150_016, 160_012, 170_008, 180_002, 190_000].into_iter().all(whole));
        assert!(![150_015, 160_011, 170_007, 180_001].into_iter().any(whole));
    }
}
