//! Text as it comes from and goes to SQL. Rust's strings are UTF-8, and a database may have another encoding. Every
//! text of ours is converted here, so that a name means the same in a LATIN1 database. Notifications are the exception:
//! they are ASCII ([`crate::ending::notify`]).

use crate::base::error::{Error, raise};
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::nullable::Nullable;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum};
use std::cell::OnceCell;
use std::ops::Deref;

/// An SQL `text`, held as UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(pub String);

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.to_owned())
    }
}

impl FromDatum for Text {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<Text> {
        if is_null {
            return None;
        }
        // SAFETY: the datum is a text, as our SQL declares
        unsafe {
            let packed = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            let bytes = std::slice::from_raw_parts(pgrx::vardata_any(packed).cast(), pgrx::varsize_any_exhdr(packed));
            Some(Text(from_server(bytes)))
        }
    }
}

thread_local! {
    /// Whether this backend's database is in UTF-8, so that no text needs conversion.
    static UTF8: OnceCell<bool> = const { OnceCell::new() };
}

fn is_utf8() -> bool {
    // SAFETY: connected to a database, which has an encoding
    let encoding = || unsafe { pg_sys::GetDatabaseEncoding() };
    UTF8.with(|known| *known.get_or_init(|| encoding() == pg_sys::pg_enc::PG_UTF8 as i32))
}

/// Returns a text of the server's encoding as UTF-8.
pub fn from_server(text: &[u8]) -> String {
    if is_utf8() {
        return String::from_utf8_lossy(text).into_owned();
    }
    let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
    // SAFETY: PostgreSQL reads `length` bytes, and there are as many
    let utf8 = unsafe { pg_sys::pg_server_to_any(text.as_ptr().cast(), length, pg_sys::pg_enc::PG_UTF8 as i32) };
    // PostgreSQL returns the same pointer if it has converted nothing. A new one ends in NUL.
    let utf8 = if std::ptr::eq(utf8.cast(), text.as_ptr()) {
        text
    } else {
        // SAFETY: as above
        unsafe { std::ffi::CStr::from_ptr(utf8) }.to_bytes()
    };
    String::from_utf8_lossy(utf8).into_owned()
}

/// Returns the name of a role; its oid if the role has been dropped.
pub fn role_name(role: pg_sys::Oid) -> String {
    // SAFETY: reads the catalog through its cache; null, or a name that ends in NUL
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() { role.to_string() } else { from_server(std::ffi::CStr::from_ptr(name).to_bytes()) }
    }
}

/// Returns the role of a name; an invalid oid if there is none.
pub fn role_of_name(name: &str) -> pg_sys::Oid {
    // SAFETY: reads the catalog through its cache; text_to_cstring ends the name in NUL
    unsafe {
        let name = pg_sys::text_to_cstring(text_datum(name).cast_mut_ptr());
        pg_sys::get_role_oid(name, true)
    }
}

impl IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(text_datum(&self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

/// Returns a text datum in the server's encoding, in the current memory context.
pub fn text_datum(text: &str) -> pg_sys::Datum {
    let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
    let bytes = text.as_ptr().cast();
    // SAFETY: PostgreSQL reads `length` bytes, and there are as many; if it converts them, the result ends in NUL
    unsafe {
        if is_utf8() {
            return pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(bytes, length));
        }
        let server = pg_sys::pg_any_to_server(bytes, length, pg_sys::pg_enc::PG_UTF8 as i32);
        if std::ptr::eq(server, bytes) {
            pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(bytes, length))
        } else {
            pg_sys::Datum::from(pg_sys::cstring_to_text(server))
        }
    }
}

// SAFETY: declares the SQL type that FromDatum and IntoDatum above convert
unsafe impl SqlTranslatable for Text {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Text);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("text"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("text")));
}

// SAFETY: returns a text, as SqlTranslatable declares it
unsafe impl BoxRet for Text {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: the datum was made in the context that PostgreSQL called in
        unsafe { fcinfo.return_raw_datum(text_datum(&self.0)) }
    }
}

// SAFETY: the argument is a text, as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for Text {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above; the functions that take a Text that is not an Option are STRICT
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or_else(|| raise(Error::Null("argument")))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}

/// Returns a text[] of text datums, in the current memory context.
pub fn text_array(elements: Vec<Option<pg_sys::Datum>>) -> pg_sys::Datum {
    let mut nulls: Vec<bool> = elements.iter().map(Option::is_none).collect();
    let mut values: Vec<_> = elements.into_iter().map(|element| element.unwrap_or(pg_sys::Datum::null())).collect();
    let mut length = i32::try_from(values.len()).unwrap_or(i32::MAX);
    let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
    // SAFETY: values and nulls are `length` long, and texts
    unsafe {
        pg_sys::Datum::from(pg_sys::construct_md_array(
            values.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            &mut length,
            &mut 1,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        ))
    }
}

/// An SQL `text[]`, with its NULL elements.
pub struct TextArray(pub Vec<Option<Text>>);

impl FromDatum for TextArray {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<TextArray> {
        if is_null {
            return None;
        }
        let (mut values, mut nulls, mut length) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the datum is a text[], as our SQL declares; the arrays that come back are `length` long
        unsafe {
            pg_sys::deconstruct_array(
                pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast(),
                pg_sys::TEXTOID,
                -1,
                false,
                pg_sys::TYPALIGN_INT as std::ffi::c_char,
                &mut values,
                &mut nulls,
                &mut length,
            );
            let element = |i: usize| Text::from_datum(*values.add(i), *nulls.add(i));
            Some(TextArray((0..usize::try_from(length).unwrap_or(0)).map(element).collect()))
        }
    }
}

// SAFETY: declares the SQL type that FromDatum above converts
unsafe impl SqlTranslatable for TextArray {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(TextArray);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("text[]"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("text[]")));
}

// SAFETY: the argument is a text[], as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for TextArray {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or_else(|| raise(Error::Null("argument")))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum() }.into()
    }
}

/// An SQL `text[]` to return. Each element is an index into `texts`, or NULL. A text is converted once, however often
/// it occurs.
pub struct Texts {
    pub texts: Vec<Text>,
    pub elements: Vec<Option<usize>>,
}

// SAFETY: declares the SQL type that BoxRet below returns
unsafe impl SqlTranslatable for Texts {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Texts);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("text[]"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("text[]")));
}

// SAFETY: returns a text[], as SqlTranslatable declares it
unsafe impl BoxRet for Texts {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        let texts: Vec<pg_sys::Datum> = self.texts.iter().map(|text| text_datum(text)).collect();
        let text = |element: &Option<usize>| element.and_then(|i| texts.get(i).copied());
        let array = text_array(self.elements.iter().map(text).collect());
        // SAFETY: the array was made in the context that PostgreSQL called in
        unsafe { fcinfo.return_raw_datum(array) }
    }
}
