//! The statement that has called a verb: does its transaction end with the answer, or may it go on for long?

use super::transaction;
use pgrx::PgList;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Returns whether the transaction ends with the answer of the verb that was just entered. It does if the verb was
/// called by a client's own SELECT outside a transaction block, or by the worker. DO, a procedure, a user's function
/// and a trigger may go on for long, but PostgreSQL does not count them as blocks. In all of these, the query that
/// called the verb is not the client's. A pipeline counts as a block only from its second statement on.
pub fn ends_with_answer() -> bool {
    if transaction::is_in_block() {
        return false;
    }
    // SAFETY: plain reads; a portal that runs a SELECT has the state of its query, which lives in a context of that
    // name
    unsafe {
        let Some(portal) = pg_sys::ActivePortal.as_ref() else { return true };
        let Some(query) = portal.queryDesc.as_ref() else { return false };
        let mut context = pg_sys::CurrentMemoryContext;
        while let Some(inner) = context.as_ref()
            && CStr::from_ptr(inner.name) != c"ExecutorState"
        {
            context = inner.parent;
        }
        query.estate.as_ref().is_some_and(|state| state.es_query_cxt == context)
    }
}

/// Returns the start of the client's last message that runs or prepares a statement. A pipeline has one such message
/// for each statement, and a string of several statements is one.
pub fn began_at() -> i64 {
    // SAFETY: a plain read
    unsafe { pg_sys::GetCurrentStatementStartTimestamp() }
}

/// Returns whether a DO statement or a procedure has called this verb, in a statement of its own or through a function.
/// Such code may go on for long, and PostgreSQL does not count it as a transaction block. A cursor in it has a portal
/// of its own. So this also looks at the client's portal, which usually has no name.
pub fn runs_code() -> bool {
    // SAFETY: plain reads; an active portal has its statements
    unsafe {
        let runs = |portal: *mut pg_sys::PortalData| {
            portal
                .as_ref()
                .is_some_and(|portal| portal.status == pg_sys::PortalStatus::PORTAL_ACTIVE && is_code(portal))
        };
        pg_sys::SPI_inside_nonatomic_context()
            || runs(pg_sys::ActivePortal)
            || runs(pg_sys::GetPortalByName(c"".as_ptr()))
    }
}

/// Returns whether a portal belongs to a DO statement or a procedure.
unsafe fn is_code(portal: &pg_sys::PortalData) -> bool {
    // SAFETY: a list of planned statements, or none
    unsafe {
        PgList::<pg_sys::PlannedStmt>::from_pg(portal.stmts).iter_ptr().any(|statement| {
            let utility = (*statement).utilityStmt.as_ref().map(|utility| utility.type_);
            matches!(utility, Some(pg_sys::NodeTag::T_DoStmt | pg_sys::NodeTag::T_CallStmt))
        })
    }
}
