//! Roles: which role calls, and which other roles it may act as.

use super::text::from_server;
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Returns the role whose privileges count now: the caller's, outside of [`super::spi::AsOwner`].
pub fn current() -> Oid {
    // SAFETY: a plain read
    unsafe { pg_sys::GetUserId() }
}

/// Returns whether a role has the privileges of another: it is a member of the other role, or a superuser.
pub fn acts_as(role: Oid, other: Oid) -> bool {
    // SAFETY: reads the catalog through its cache
    unsafe { pg_sys::has_privs_of_role(role, other) }
}

/// Returns the name of a role as SQL writes it. Raises if the role has been dropped.
pub fn quoted_name(role: Oid) -> String {
    // SAFETY: reads the catalog through its cache; the quoted name ends in NUL
    unsafe {
        let quoted = pg_sys::quote_identifier(pg_sys::GetUserNameFromId(role, false));
        from_server(CStr::from_ptr(quoted).to_bytes())
    }
}
