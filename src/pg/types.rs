//! Types of columns, by their oids.

use super::text::{from_server, text_datum};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Returns the name of a type as SQL writes it.
pub fn type_name(is: Oid) -> String {
    // SAFETY: reads the catalog through its cache; the answer ends in NUL
    unsafe { from_server(CStr::from_ptr(pg_sys::format_type_be(is)).to_bytes()) }
}

/// Returns a value as its type writes it. Raises the type's own error if the text is no such value. For PostgreSQL's
/// own types.
pub fn canonical(is: Oid, value: &str) -> String {
    let (mut read, mut write, mut parameter, mut varlena) = (Oid::INVALID, Oid::INVALID, Oid::INVALID, false);
    // SAFETY: functions of one of PostgreSQL's own types; text_to_cstring and what a type writes end in NUL
    unsafe {
        pg_sys::getTypeInputInfo(is, &mut read, &mut parameter);
        pg_sys::getTypeOutputInfo(is, &mut write, &mut varlena);
        let text = pg_sys::text_to_cstring(text_datum(value).cast_mut_ptr());
        let value = pg_sys::OidInputFunctionCall(read, text, parameter, -1);
        from_server(CStr::from_ptr(pg_sys::OidOutputFunctionCall(write, value)).to_bytes())
    }
}

/// Returns the type of a table's column, and whether it is computed when it is read. Returns `None` if there is no such
/// column.
pub fn of_column(table: Oid, name: &str) -> Option<(Oid, bool)> {
    // SAFETY: reads the catalog through its cache; text_to_cstring ends the name in NUL
    unsafe {
        let number = pg_sys::get_attnum(table, pg_sys::text_to_cstring(text_datum(name).cast_mut_ptr()));
        let is_there = number > 0;
        is_there.then(|| (pg_sys::get_atttype(table, number), pg_sys::get_attgenerated(table, number) as u8 == b'v'))
    }
}
