//! The server and the database that this process works in.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Returns whether the library is being loaded by shared_preload_libraries.
pub fn is_preloading() -> bool {
    // SAFETY: a plain read
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Makes PostgreSQL refuse undefined settings of a prefix. Call this once ours are defined.
pub fn reserve_settings(prefix: &'static CStr) {
    // SAFETY: while the library is being loaded, as PostgreSQL requires
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Returns the setting `max_connections`.
pub fn max_connections() -> i32 {
    // SAFETY: a plain read
    unsafe { pg_sys::MaxConnections }
}

/// Returns whether this server is in recovery: a standby, or one that has just crashed.
pub fn is_in_recovery() -> bool {
    // SAFETY: no preconditions in a process that is attached to shared memory
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Returns the timeline to which the server writes.
pub fn timeline() -> i32 {
    // SAFETY: no preconditions outside of recovery
    unsafe { pg_sys::GetWALInsertionTimeLine() }.cast_signed()
}

/// Returns the number that initdb has given the cluster. Its standbys and copies have the same number.
pub fn system_identifier() -> i64 {
    // SAFETY: a plain read of shared memory
    unsafe { pg_sys::GetSystemIdentifier() }.cast_signed()
}

/// Returns the oid of this database.
pub fn database() -> u32 {
    // SAFETY: a plain read
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// Returns a setting that every server has, and that is a number from 0 on.
pub fn integer_setting(name: &CStr) -> u32 {
    // SAFETY: raises if there is no such setting; the text ends in NUL
    let value = unsafe { CStr::from_ptr(pg_sys::GetConfigOption(name.as_ptr(), false, false)) };
    let number = value.to_str().ok().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| pgrx::error!("setting {} is no number: {value:?}", name.to_string_lossy()))
}
