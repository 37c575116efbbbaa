//! `jsonb` as it comes from and goes to SQL: bytes that nobody here looks into.

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::nullable::Nullable;
use pgrx::pg_sys::{self, Datum};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum};

/// An SQL `jsonb`.
pub struct Payload(Vec<u8>);

impl Payload {
    /// Bytes, as PostgreSQL keeps it before compression.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A copy for PostgreSQL.
    pub fn datum(&self) -> Datum {
        // SAFETY: a varlena of this length, copied to where PostgreSQL wants it aligned
        unsafe {
            let copy = pg_sys::palloc(self.0.len()).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy, self.0.len());
            Datum::from(copy)
        }
    }
}

impl FromDatum for Payload {
    unsafe fn from_polymorphic_datum(datum: Datum, is_null: bool, _: pg_sys::Oid) -> Option<Payload> {
        if is_null {
            return None;
        }
        // SAFETY: the datum is a jsonb, as our SQL declares
        unsafe {
            let whole = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
            Some(Payload(std::slice::from_raw_parts(whole.cast(), pgrx::varsize_any(whole)).to_vec()))
        }
    }
}

impl IntoDatum for Payload {
    fn into_datum(self) -> Option<Datum> {
        Some(self.datum())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: declares the SQL type that FromDatum and IntoDatum above convert
unsafe impl SqlTranslatable for Payload {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Payload);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}

// SAFETY: returns a jsonb, as SqlTranslatable declares it
unsafe impl BoxRet for Payload {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: the datum was made in the context that PostgreSQL called in
        unsafe { fcinfo.return_raw_datum(self.datum()) }
    }
}

// SAFETY: the argument is a jsonb, as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for Payload {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Payload(Vec::new()))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}

/// An SQL `jsonb[]`, passed on as it is; and how many bytes each element has.
pub struct PayloadArray {
    pub datum: Datum,
    pub lengths: Vec<Option<usize>>,
}

impl FromDatum for PayloadArray {
    unsafe fn from_polymorphic_datum(datum: Datum, is_null: bool, _: pg_sys::Oid) -> Option<PayloadArray> {
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
            let size = |i: usize| (!*nulls.add(i)).then(|| pgrx::varsize_any((*values.add(i)).cast_mut_ptr()));
            let lengths = (0..usize::try_from(length).unwrap_or(0)).map(size).collect();
            Some(PayloadArray { datum: Datum::from(array), lengths })
        }
    }
}

// SAFETY: declares the SQL type that FromDatum above converts
unsafe impl SqlTranslatable for PayloadArray {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(PayloadArray);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb[]"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb[]")));
}

// SAFETY: the argument is a jsonb[], as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for PayloadArray {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }
            .unwrap_or(PayloadArray { datum: Datum::from(0), lengths: Vec::new() })
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}
