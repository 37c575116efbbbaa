//! The rows that verbs answer with, mostly one.
//!
//! pgrx's own iterator describes its rows anew in each call and is asked twice for one row, which is a good part of what a heartbeat
//! costs. Here the row goes where the executor collects what a function returns, by the description that the executor has.

use pgrx::IntoHeapTuple;
use pgrx::callconv::RetAbi;
use pgrx::pg_sys::{self, Datum};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// `TABLE (..)`. By this name pgrx knows the type whose columns it is to declare.
pub struct TableIterator<Row> {
    one: Option<Row>,
    many: Vec<Row>,
}

impl<Row> TableIterator<Row> {
    pub fn once(row: Row) -> TableIterator<Row> {
        TableIterator { one: Some(row), many: Vec::new() }
    }

    pub fn of(many: Vec<Row>) -> TableIterator<Row> {
        TableIterator { one: None, many }
    }
}

// SAFETY: declared as pgrx's own iterator over such rows is
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
        // SAFETY: the executor's own call; what is collected lives as long as the query
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
            for row in answer.one.into_iter().chain(answer.many) {
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
