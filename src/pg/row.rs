//! The rows that functions return.
//!
//! One row is a value of a composite type, which schema.sql makes; PostgreSQL finds such a type in its cache. For a
//! `RETURNS TABLE` it builds the columns anew in each execution. That took a seventh of a heartbeat's cost beyond
//! `SELECT 1`. A function that may return several rows still returns a table, and puts the rows where the executor
//! collects them.
//!
//! Columns that a later version adds to a type are its last ones, and an update adds them with `ALTER TYPE`. Until then
//! the type has the columns of the former version, and only those are returned.

use super::catalog;
use pgrx::IntoHeapTuple;
use pgrx::callconv::{FcInfo, RetAbi};
use pgrx::pg_sys::{self, Datum};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// Declares the columns of a composite type of schema.sql as a struct that functions return. `added`: those that the
/// type of a former version lacks.
macro_rules! composite {
    (
        $(#[$meta:meta])*
        $name:ident = $sql:literal { $($column:ident: $type:ty,)* } $(added { $($new:ident: $new_type:ty,)* })?
    ) => {
        $(#[$meta])*
        pub struct $name {
            $(pub $column: $type,)*
            $($(pub $new: $new_type,)*)?
        }

        const _: () = {
            use pgrx::callconv::{BoxRet, FcInfo};
            use pgrx::pgrx_sql_entity_graph::metadata::{
                ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
            };

            // SAFETY: declares the SQL type whose values BoxRet below returns
            unsafe impl SqlTranslatable for $name {
                const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($name);
                const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
                const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> =
                    Ok(SqlMappingRef::literal($sql));
                const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
                    Ok(ReturnsRef::One(SqlMappingRef::literal($sql)));
            }

            // SAFETY: returns a value of the type that SqlTranslatable declares
            unsafe impl BoxRet for $name {
                unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
                    let columns = [
                        $(pgrx::IntoDatum::into_datum(self.$column),)*
                        $($(pgrx::IntoDatum::into_datum(self.$new),)*)?
                    ];
                    let types = [
                        $(<$type as pgrx::IntoDatum>::type_oid(),)*
                        $($(<$new_type as pgrx::IntoDatum>::type_oid(),)*)?
                    ];
                    // SAFETY: the columns of the type, with their types
                    unsafe { $crate::pg::row::answer(fcinfo, columns, types) }
                }
            }
        };
    };
}
pub(crate) use composite;

/// Returns the columns as a value of the composite type that the function is declared to return.
///
/// # Safety
/// The columns have the types of that type's columns.
pub unsafe fn answer<'fcx, const COLUMNS: usize>(
    fcinfo: &mut FcInfo<'fcx>,
    columns: [Option<Datum>; COLUMNS],
    types: [pg_sys::Oid; COLUMNS],
) -> pgrx::datum::Datum<'fcx> {
    let mut nulls = columns.map(|column| column.is_none());
    let mut values = columns.map(|column| column.unwrap_or(Datum::from(0)));
    // SAFETY: the description is the caller's for this call, and has no more columns than there are values
    unsafe {
        let call = fcinfo.as_mut_ptr();
        let from = (*call).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        // In FROM the executor provides the type's description; in a list of columns it has none.
        let mut description = if !from.is_null() && (*from).type_ == pg_sys::NodeTag::T_ReturnSetInfo {
            (*from).expectedDesc
        } else {
            std::ptr::null_mut()
        };
        if description.is_null() || (*description).tdtypeid == pg_sys::RECORDOID {
            pg_sys::get_call_result_type(call, std::ptr::null_mut(), &mut description);
        }
        // In a database of a former version the type has fewer columns: what is new comes last.
        let has = usize::try_from((*description).natts).unwrap_or(0);
        if has != COLUMNS {
            // If the type has got its new columns while this call ran, the executor would compare them with the columns
            // that its statement expects, and raise. The statement expects a record of the former columns.
            let mut now = std::ptr::null_mut();
            pg_sys::get_call_result_type(call, std::ptr::null_mut(), &mut now);
            let is_overtaken = has < COLUMNS && !now.is_null() && (*now).natts != (*description).natts;
            if is_overtaken {
                description = pg_sys::CreateTupleDescCopy(description);
                ((*description).tdtypeid, (*description).tdtypmod) = (pg_sys::RECORDOID, -1);
                description = pg_sys::BlessTupleDesc(description);
            } else if has > COLUMNS || catalog::has_wait_many() {
                catalog::unserved(format!("A type has {} columns, not {COLUMNS}.", (*description).natts));
            }
        } else if pg_sys::SPI_gettypeid(description, (*description).natts) != types[COLUMNS - 1] {
            // An administrator has added a column to the type of a former version.
            catalog::unserved(format!("Column {COLUMNS} of a type is of another type."));
        }
        let tuple = pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
        fcinfo.return_raw_datum(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
    }
}

/// A result of `TABLE (..)`. By this name pgrx finds the type whose columns it must declare.
pub struct TableIterator<Row>(Vec<Row>);

impl<Row> TableIterator<Row> {
    pub fn of(rows: Vec<Row>) -> TableIterator<Row> {
        TableIterator(rows)
    }
}

// SAFETY: declared like pgrx's own iterator over such rows
unsafe impl<Row> SqlTranslatable for TableIterator<Row>
where
    pgrx::iter::TableIterator<'static, Row>: SqlTranslatable,
{
    const TYPE_IDENT: &'static str = <pgrx::iter::TableIterator<'static, Row> as SqlTranslatable>::TYPE_IDENT;
    const TYPE_ORIGIN: TypeOrigin = <pgrx::iter::TableIterator<'static, Row> as SqlTranslatable>::TYPE_ORIGIN;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::Table);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        <pgrx::iter::TableIterator<'static, Row> as SqlTranslatable>::RETURN_SQL;
}

// SAFETY: sets the result as funcapi.h describes it for functions that materialize theirs
unsafe impl<Row: IntoHeapTuple> RetAbi for TableIterator<Row> {
    type Item = Row;
    type Ret = Self;

    fn to_ret(self) -> Self {
        self
    }

    unsafe fn box_ret_in_fcinfo(fcinfo: pg_sys::FunctionCallInfo, answer: Self) -> Datum {
        // SAFETY: the executor's own call; the collected rows live as long as the query
        unsafe {
            let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let materialize = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            if result.is_null()
                || (*result).type_ != pg_sys::NodeTag::T_ReturnSetInfo
                || (*result).allowedModes & materialize as i32 == 0
                || (*result).expectedDesc.is_null()
            {
                pgrx::error!("a function of eskit_lease was called where no row can be returned");
            }
            // A scrollable cursor reads backward.
            let random = pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random as i32;
            let backward = (*result).allowedModes & random != 0;
            let before = pg_sys::MemoryContextSwitchTo((*(*result).econtext).ecxt_per_query_memory);
            let rows = pg_sys::tuplestore_begin_heap(backward, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(before);
            for row in answer.0 {
                pg_sys::tuplestore_puttuple(rows, row.into_heap_tuple((*result).expectedDesc));
            }
            (*result).returnMode = materialize;
            (*result).setResult = rows;
            (*fcinfo).isnull = true;
        }
        Datum::from(0)
    }

    unsafe fn move_into_fcinfo_fcx(self, _: pg_sys::FunctionCallInfo) {}

    unsafe fn fill_fcinfo_fcx(&self, _: pg_sys::FunctionCallInfo) {}
}
