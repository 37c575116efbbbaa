//! REPACK (CONCURRENTLY), which PostgreSQL has from 19 on, is refused for our tables.
//!
//! It makes all rows anew, in its own transaction, and lets others use the table meanwhile. Afterwards a row no longer
//! tells which transaction has made it. A statement that began before sees no row: for it every lease is granted after
//! its snapshot, so that `fence_check` raises 40001. REPACK without CONCURRENTLY and VACUUM keep what a row tells.

use super::catalog;
use crate::base::error::{Error, raise};
use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::{PgList, pg_guard};
use std::ffi::{CStr, c_char};

unsafe extern "C-unwind" {
    /// Without pgrx's boundary: its caller has nothing with a destructor.
    fn standard_ProcessUtility(
        planned: *mut pg_sys::PlannedStmt,
        text: *const c_char,
        is_read_only: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        into: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;

/// Looks at each utility command from now on. Call this while the library is being preloaded.
pub fn install() {
    // SAFETY: the postmaster has one thread, and hooks are chained as every extension does
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(look);
    }
}

unsafe extern "C-unwind" fn look(
    planned: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    is_read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    into: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: a planned utility command, whose tag tells its type; it goes on as it came
    unsafe {
        let command = (*planned).utilityStmt;
        if (*command).type_ == NodeTag::T_RepackStmt {
            refuse_ours(command.cast());
        }
        let next = PREVIOUS.unwrap_or(standard_ProcessUtility);
        next(planned, text, is_read_only, context, parameters, environment, into, completion);
    }
}

/// Raises if the command names a table of ours. PostgreSQL itself refuses a command that names none.
#[pg_guard]
unsafe extern "C-unwind" fn refuse_ours(command: *mut pg_sys::RepackStmt) {
    // SAFETY: a command as the parser makes it, in a transaction
    unsafe {
        let Some(named) = (*command).relation.as_ref() else { return };
        // As in PostgreSQL, the last of several counts.
        let options = PgList::<pg_sys::DefElem>::from_pg((*command).params);
        let said = options.iter_ptr().filter(|one| CStr::from_ptr((**one).defname) == c"concurrently").last();
        if !said.is_some_and(|option| pg_sys::defGetBoolean(option)) {
            return;
        }
        let (lock, missing_ok) = (pg_sys::NoLock as i32, pg_sys::RVROption::RVR_MISSING_OK);
        let table = pg_sys::RangeVarGetRelidExtended(named.relation, lock, missing_ok, None, std::ptr::null_mut());
        // A table that is dropped meanwhile has no name; PostgreSQL says so.
        if table != Oid::INVALID
            && catalog::is_ours(table)
            && let Some(name) = catalog::table_name(table)
        {
            raise(Error::RepackedConcurrently(name));
        }
    }
}
