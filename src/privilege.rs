//! Privileges: PUBLIC may call the key functions, and these two hand out the rest, as whoever calls them: PostgreSQL's own rules for
//! GRANT say who may.

use crate::error::{Error, Result};
use crate::spi;
use crate::text::from_server;
use pgrx::callconv::{Arg, ArgAbi};
use pgrx::nullable::Nullable;
use pgrx::pg_sys::{self, Oid};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::prelude::*;

/// An SQL `regrole`.
pub struct Role(Oid);

// SAFETY: a regrole is an oid
unsafe impl SqlTranslatable for Role {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Role);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("regrole"));
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("regrole")));
}

// SAFETY: the argument is a regrole, as SqlTranslatable declares it
unsafe impl<'fcx> ArgAbi<'fcx> for Role {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: as above
        Role(unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Oid::INVALID))
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> Nullable<Self> {
        // SAFETY: as above
        unsafe { arg.unbox_arg_using_from_datum().map(Role) }.into()
    }
}

/// Runs `GRANT .. TO role` statements. GRANT takes no parameters, so the role's name is quoted by PostgreSQL.
fn grant(statements: &str, role: Option<Role>) -> Result<()> {
    let Role(role) = role.ok_or(Error::Null("role"))?;
    // SAFETY: raises for a role that is no more; the quoted name ends in NUL
    let name = unsafe {
        let quoted = pg_sys::quote_identifier(pg_sys::GetUserNameFromId(role, false));
        from_server(std::ffi::CStr::from_ptr(quoted).to_bytes())
    };
    spi::run_as_caller(&statements.replace("{role}", &name));
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn grant_consumer(role: Option<Role>) -> Result<()> {
    grant(include_str!("../sql/query/privilege/consumer.sql"), role)
}

#[pg_extern(schema = "eskit_lease")]
fn grant_monitor(role: Option<Role>) -> Result<()> {
    grant(include_str!("../sql/query/privilege/monitor.sql"), role)
}
