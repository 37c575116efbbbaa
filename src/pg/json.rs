//! `jsonb` as it comes from and goes to SQL: bytes that this extension does not look into. A value that is read into
//! Rust's numbers and written back would not be the same.

use crate::base::error::{Error, raise};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::nullable::Nullable;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum};

/// An SQL `jsonb`: the bytes of a value, including its header.
#[derive(Clone)]
pub struct Jsonb(Vec<u8>);

impl Jsonb {
    pub fn datum(&self) -> pg_sys::Datum {
        // SAFETY: as many bytes are copied as were made room for, in the current memory context, which aligns them
        unsafe {
            let copy = pg_sys::palloc(self.0.len());
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy.cast(), self.0.len());
            pg_sys::Datum::from(copy)
        }
    }

    /// Returns how many bytes PostgreSQL keeps, before compression.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how long the value is as text, in bytes.
    pub fn text_length(&self) -> usize {
        // SAFETY: the datum is a jsonb
        unsafe { text_length(self.datum()) }
    }
}

/// Returns how long a jsonb is as text, in bytes.
///
/// # Safety
/// The datum is a jsonb.
pub unsafe fn text_length(json: pg_sys::Datum) -> usize {
    // SAFETY: as the caller promises. The text ends in NUL, and is freed once it has been measured
    unsafe {
        let text: Option<&std::ffi::CStr> = pgrx::direct_function_call(pg_sys::jsonb_out, &[Some(json)]);
        let Some(text) = text else { return 0 };
        let length = text.to_bytes().len();
        pg_sys::pfree(text.as_ptr().cast_mut().cast());
        length
    }
}

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<Jsonb> {
        if is_null {
            return None;
        }
        // SAFETY: the datum is a jsonb, as our SQL declares; it has as many bytes as its header says
        unsafe {
            let plain = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
            Some(Jsonb(std::slice::from_raw_parts(plain.cast(), pgrx::varsize_any(plain)).to_vec()))
        }
    }
}

impl IntoDatum for Jsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.datum())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: declares the SQL type that FromDatum and IntoDatum above convert
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Jsonb);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}

// SAFETY: returns a jsonb, as SqlTranslatable declares it
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: the datum was made in the context that PostgreSQL called in
        unsafe { fcinfo.return_raw_datum(self.datum()) }
    }
}

// SAFETY: the argument is a jsonb, as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above; no function takes a Jsonb that is not an Option
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or_else(|| raise(Error::Null("argument")))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}

/// An SQL `jsonb[]`, passed on as it is, and its elements.
pub struct JsonbArray {
    pub datum: pg_sys::Datum,
    pub elements: Vec<Option<Element>>,
}

/// An element of a `jsonb[]`: a pointer into the array.
#[derive(Clone, Copy)]
pub struct Element(pg_sys::Datum);

impl Element {
    /// Returns how many bytes PostgreSQL keeps, before compression.
    pub fn len(self) -> usize {
        // SAFETY: a jsonb in an array that lives as long as the call whose argument it is
        unsafe { pgrx::varsize_any(self.0.cast_mut_ptr()) }
    }

    /// Returns how long the element is as text, in bytes.
    pub fn text_length(self) -> usize {
        // SAFETY: as above
        unsafe { text_length(self.0) }
    }
}

impl FromDatum for JsonbArray {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<JsonbArray> {
        if is_null {
            return None;
        }
        let (mut values, mut nulls, mut length) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the datum is a jsonb[], as our SQL declares; the arrays that come back are `length` long
        unsafe {
            let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
            pg_sys::deconstruct_array(
                array.cast(),
                pg_sys::JSONBOID,
                -1,
                false,
                pg_sys::TYPALIGN_INT as std::ffi::c_char,
                &mut values,
                &mut nulls,
                &mut length,
            );
            let element = |i: usize| (!*nulls.add(i)).then(|| Element(*values.add(i)));
            let elements = (0..usize::try_from(length).unwrap_or(0)).map(element).collect();
            Some(JsonbArray { datum: pg_sys::Datum::from(array), elements })
        }
    }
}

// SAFETY: declares the SQL type that FromDatum above converts
unsafe impl SqlTranslatable for JsonbArray {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(JsonbArray);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb[]"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb[]")));
}

// SAFETY: the argument is a jsonb[], as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for JsonbArray {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or_else(|| raise(Error::Null("argument")))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}
