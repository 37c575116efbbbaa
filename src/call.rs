//! One call of a verb: what every verb needs, checked once at its entry.

use crate::MAX_NAME;
use crate::catalog;
use crate::error::{Error, Result};
use crate::liveness::databases::Database;
use crate::liveness::slots::Home;
use crate::liveness::{Shared, shared};
use crate::seam::Seam;
use crate::spi::Db;
use crate::text::Text;
use pgrx::pg_sys::{self, Oid};
use std::cell::OnceCell;

/// Shared memory, on a server that is neither without it nor in recovery.
pub fn enter() -> Result<&'static Shared> {
    let shared = shared()?;
    if in_recovery() { Err(Error::Recovery.into()) } else { Ok(shared) }
}

/// Whether this is a standby.
pub fn in_recovery() -> bool {
    // SAFETY: no preconditions in a backend
    unsafe { pg_sys::RecoveryInProgress() }
}

/// A call that reads or writes rows.
pub struct Call {
    pub shared: &'static Shared,
    pub database: &'static Database,
    pub home: Home,
    /// Whose call it is.
    pub caller: Oid,
    db: OnceCell<Db>,
}

impl Call {
    pub fn open(shared: &'static Shared) -> Result<Call> {
        let home = catalog::home();
        // SAFETY: a plain read
        let caller = unsafe { pg_sys::GetUserId() };
        Ok(Call { shared, database: shared.database(home)?, home, caller, db: OnceCell::new() })
    }

    /// The connection to SPI, made when the first statement is to run: many an answer needs none.
    pub fn db(&self) -> &Db {
        self.db.get_or_init(|| Db::open(self.home))
    }

    /// Whose extension it is.
    pub fn owner(&self) -> Oid {
        catalog::owner(self.home)
    }

    pub fn seam(&self) -> Seam {
        Seam { shared: self.shared, database: self.database }
    }
}

/// The name of a consumer or a resource.
pub fn text_arg(what: &'static str, text: Option<Text>) -> Result<String> {
    let name = text.ok_or(Error::Null(what))?.0;
    if (1..=MAX_NAME).contains(&name.len()) { Ok(name) } else { Err(Error::Name { what, length: name.len() }.into()) }
}
