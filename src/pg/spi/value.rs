//! The values of a statement's parameters.

use crate::pg::json::Jsonb;
use crate::pg::text::{text_array, text_datum};
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::{IntoDatum, Uuid};
use std::ffi::c_char;

/// A value for a statement.
pub enum Value<'a> {
    Text(&'a str),
    MaybeText(Option<&'a str>),
    Null,
    Texts(Vec<&'a str>),
    MaybeTexts(Vec<Option<&'a str>>),
    Uuid(Uuid),
    MaybeUuid(Option<Uuid>),
    Uuids(&'a [Uuid]),
    Tids(&'a mut [pg_sys::ItemPointerData]),
    Long(i64),
    Int(i32),
    MaybeInt(Option<i32>),
    Ints(&'a [i32]),
    Longs(&'a [i64]),
    Double(f64),
    Bool(bool),
    MaybeJson(Option<&'a Jsonb>),
    Oid(u32),
    /// A value of a type that only the statement knows.
    Datum(Datum),
}

impl Value<'_> {
    pub fn datum(self) -> Option<Datum> {
        match self {
            Value::Text(text) => Some(text_datum(text)),
            Value::MaybeText(text) => text.map(text_datum),
            Value::Null => None,
            Value::Texts(texts) => {
                let align = pg_sys::TYPALIGN_INT as c_char;
                Some(array(texts.into_iter().map(text_datum).collect(), pg_sys::TEXTOID, -1, align))
            }
            Value::MaybeTexts(texts) => Some(text_array(texts.into_iter().map(|text| text.map(text_datum)).collect())),
            Value::Uuid(uuid) => uuid.into_datum(),
            Value::MaybeUuid(uuid) => uuid.and_then(IntoDatum::into_datum),
            Value::Uuids(uuids) => {
                let align = pg_sys::TYPALIGN_CHAR as c_char;
                // A uuid's datum is a pointer to its 16 bytes, which construct_array copies.
                let datums = uuids.iter().map(|uuid| Datum::from(uuid.as_bytes().as_ptr())).collect();
                Some(array(datums, pg_sys::UUIDOID, 16, align))
            }
            Value::Tids(tids) => {
                let align = pg_sys::TYPALIGN_SHORT as c_char;
                let datums = tids.iter_mut().map(|tid| Datum::from(std::ptr::from_mut(tid))).collect();
                Some(array(datums, pg_sys::TIDOID, size_of::<pg_sys::ItemPointerData>() as i32, align))
            }
            Value::Long(number) => number.into_datum(),
            Value::Int(number) => number.into_datum(),
            Value::MaybeInt(number) => number.and_then(IntoDatum::into_datum),
            Value::Longs(numbers) => {
                let align = pg_sys::TYPALIGN_DOUBLE as c_char;
                Some(array(numbers.iter().map(|number| Datum::from(*number)).collect(), pg_sys::INT8OID, 8, align))
            }
            Value::Ints(numbers) => {
                let align = pg_sys::TYPALIGN_INT as c_char;
                Some(array(numbers.iter().map(|number| Datum::from(*number)).collect(), pg_sys::INT4OID, 4, align))
            }
            Value::Double(number) => number.into_datum(),
            Value::Bool(truth) => truth.into_datum(),
            Value::MaybeJson(json) => json.map(Jsonb::datum),
            Value::Oid(oid) => Some(Datum::from(oid)),
            Value::Datum(datum) => Some(datum),
        }
    }
}

fn array(mut elements: Vec<Datum>, element: Oid, length: i32, align: c_char) -> Datum {
    let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    let by_value = matches!(element, pg_sys::INT4OID | pg_sys::INT8OID);
    // SAFETY: the elements are of the type that length, alignment and passing describe
    unsafe { Datum::from(pg_sys::construct_array(elements.as_mut_ptr(), count, element, length, by_value, align)) }
}
