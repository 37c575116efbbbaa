//! Privileges: PUBLIC may call the key functions, and these two hand out the rest, as whoever calls them: PostgreSQL's own rules for
//! GRANT say who may.

use crate::error::{Error, Result};
use crate::oids::Role;
use crate::spi;
use crate::text::from_server;
use pgrx::prelude::*;

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
