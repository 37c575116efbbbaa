//! The check by the triggers of fenced tables: does a pass of this transaction stand?
//!
//! A pass is a check that [`crate::lease::fence::check`] has noted in [`crate::seam`]. The check holds the lease to the
//! end of the transaction. So a pass that stands now is current at commit, and the triggers read only the list of
//! passes. If this transaction ends sessions, they also read the lease. A pass is gone after a rollback to a savepoint
//! before it. It ends when this transaction itself gives the lease away, or ends the session.
//!
//! In a table fenced by a column, each written row is checked. The result for a partition is remembered until the list
//! of passes changes.

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

/// The slots of a resource for which a pass stands; `None` for any slot. The resource is named as in the trigger.
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

/// The trigger function, which sql/functions.sql declares. pgrx's own kind of trigger cannot raise an error with its
/// SQLSTATE.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn eskit_lease_require_fence(call: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: PostgreSQL passes a valid call; the tag of its context tells whether a trigger calls
    let data = unsafe {
        let context = (*call).context;
        let is_trigger = !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData;
        if is_trigger { context.cast::<TriggerData>().as_ref() } else { None }
    };
    let answer = match data {
        // SAFETY: the call and its data are those of a trigger
        Some(data) => unsafe { require(call, data) },
        None => Err(Error::NoFenceTrigger.into()),
    };
    if let Err(report) = answer {
        report.report(pgrx::PgLogLevel::ERROR);
    }
    Datum::from(0)
}

unsafe fn require(call: pg_sys::FunctionCallInfo, data: &TriggerData) -> Result<()> {
    // SAFETY: a trigger has as many arguments as its count says, and each ends in NUL
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

/// Returns whether transition tables have all rows. Before certain minor versions, one query with a MERGE and another
/// statement on the same table could leave out rows. PostgreSQL's release notes: "Fix trigger transition table capture
/// for MERGE in CTE queries".
pub fn sees_all_rows() -> bool {
    static SEES: OnceLock<bool> = OnceLock::new();
    *SEES.get_or_init(|| {
        // SAFETY: every server has this setting, a string that ends in NUL
        let version = unsafe { pg_sys::GetConfigOption(c"server_version_num".as_ptr(), false, false) };
        // SAFETY: the string ends in NUL
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

/// The rows that an event has written, of a table whose column tells the partitions.
struct Rows<'a> {
    data: &'a TriggerData,
    resource: &'a CStr,
    name: &'a CStr,
}

impl Rows<'_> {
    unsafe fn hold(&self, call: pg_sys::FunctionCallInfo) -> Result<()> {
        let data = self.data;
        let operation = data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        // SAFETY: the slots and the transition tables that this event has hold its rows
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
        // SAFETY: the caller passes the data and a row of a trigger's event
        unsafe { hold(self.data, self.resource, Some(partition(self.data, row, self.name, column)?)) }
    }

    unsafe fn hold_table(&self, rows: *mut pg_sys::Tuplestorestate, column: Column) -> Result<()> {
        if rows.is_null() || !sees_all_rows() {
            return Err(Error::NoFenceTrigger.into());
        }
        // SAFETY: the caller passes a transition table of this event. Other triggers also read it, each from its own
        // read position. If PostgreSQL raises, the slot goes with its memory.
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

/// Returns the function that reads an integer of a type from its datum; `None` for another type.
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

/// Returns the column of a name. Refuses one that is not an integer.
unsafe fn column(data: &TriggerData, name: &CStr) -> Result<Column> {
    // SAFETY: the relation is open
    unsafe {
        let columns = (*data.tg_relation).rd_att;
        let number = pg_sys::SPI_fnumber(columns, name.as_ptr());
        // The column may have been renamed or dropped, or another one may have its name.
        let read = if number > 0 { integer(pg_sys::SPI_gettypeid(columns, number)) } else { None };
        match read {
            Some(read) => Ok(Column { number, read }),
            None => Err(Error::ColumnGone { table: table_name(data), column: from_server(name.to_bytes()) }.into()),
        }
    }
}

/// Returns the column of a name, looked up once for all rows of a statement. It is cached in `fn_extra`, the call's own
/// memory; no change of the table can come in between.
unsafe fn kept_column(call: pg_sys::FunctionCallInfo, data: &TriggerData, name: &CStr) -> Result<Column> {
    // SAFETY: this function wrote what `fn_extra` points to, for this trigger; the memory lives as long as the function
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

/// Returns the value of a column in a row; `None` for a null. This runs for each row. If the row is stored as in the
/// table or in a transition table, a column at a fixed offset is read without calling PostgreSQL.
unsafe fn value(row: *mut TupleTableSlot, number: i32) -> Option<Datum> {
    let at = (number - 1) as usize;
    // SAFETY: the slot holds a row with this column; its operations tell which kind of tuple it has
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

/// Returns the partition to which a row belongs.
unsafe fn partition(data: &TriggerData, row: *mut TupleTableSlot, name: &CStr, column: Column) -> Result<i32> {
    // SAFETY: the caller passes the data and a row of a trigger's event
    match unsafe { value(row, column.number) } {
        // A number that is no partition has no owner.
        Some(value) => Ok(i32::try_from((column.read)(value)).unwrap_or(-1)),
        None => {
            // SAFETY: the caller passes the data and a row of a trigger's event
            let table = unsafe { table_name(data) };
            Err(Error::PartitionNull { table, column: from_server(name.to_bytes()) }.into())
        }
    }
}

/// Raises unless a pass for the resource stands; with `slot`, a pass for this slot.
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
    // SAFETY: the caller passes the data and a row of a trigger's event
    let table = unsafe { table_name(data) };
    let partitions = slot.and_then(|_| declaration::of(&name)).map(|group| group.slots);
    Err(Error::FenceRequired { table, resource: name, partition: slot, partitions, given_away }.into())
}

/// Returns whether logical replication itself runs the statement: a first copy or a TRUNCATE, on an ordinary table with
/// statement triggers. Such a statement passes, like the rows that are applied later: no statement trigger fires for
/// these.
unsafe fn is_replicated(data: &TriggerData) -> bool {
    // SAFETY: the relation is open; the rest are plain reads. Inside another trigger, which may do anything, the depth
    // is greater.
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

/// Returns whether a subscription replicates the table. If an expression of another table that is being replicated
/// writes to this table, that write is not replication.
unsafe fn is_subscribed(table: Oid) -> bool {
    // SAFETY: reads the catalog through its cache; the list is released once
    unsafe {
        let (key, none) = (Datum::from(table), Datum::from(0));
        let list = pg_sys::SearchSysCacheList(pg_sys::SysCacheIdentifier::SUBSCRIPTIONRELMAP as _, 1, key, none, none);
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

/// Returns whether the lease under a fence has a session that this transaction does not end. That may be a private
/// session, if this transaction has put the lease in grace.
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
