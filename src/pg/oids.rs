//! Roles and tables as arguments: by name in SQL, by oid here.

use crate::base::error::{Error, raise};
use pgrx::callconv::{Arg, ArgAbi};
use pgrx::nullable::Nullable;
use pgrx::pg_sys::Oid;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

macro_rules! oid_argument {
    ($name:ident, $sql:literal) => {
        #[doc = concat!("An SQL `", $sql, "`.")]
        pub struct $name(pub Oid);

        // SAFETY: the type is an oid
        unsafe impl SqlTranslatable for $name {
            const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($name);
            const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
            const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal($sql));
            const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::literal($sql)));
        }

        // SAFETY: the argument is of the type that SqlTranslatable declares
        unsafe impl<'fcx> ArgAbi<'fcx> for $name {
            unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
                // SAFETY: as above
                $name(unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or_else(|| raise(Error::Null("argument"))))
            }

            unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
                // SAFETY: as above
                unsafe { arg.unbox_arg_using_from_datum().map($name) }.into()
            }
        }
    };
}

oid_argument!(Role, "regrole");
oid_argument!(Class, "regclass");
