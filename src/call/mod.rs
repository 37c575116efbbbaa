//! One call of a verb: what every verb needs, checked once at its entry.
//!
//! Files, low to high: argument, mod.

mod argument;

pub use argument::{Given, names_arg, text_arg};

use crate::base::error::{Error, Result};
use crate::pg::catalog::{self, Home};
use crate::pg::spi::{self, Db, Statement, Value};
use crate::pg::table::Table;
use crate::pg::{order, role, server};
use crate::seam::Seam;
use crate::shmem::databases::Database;
use crate::shmem::{Shared, shared};
use pgrx::pg_sys::Oid;
use std::cell::{Cell, OnceCell};

/// Shared memory, on a server that is neither without it nor in recovery.
pub fn enter() -> Result<&'static Shared> {
    let shared = shared()?;
    if in_recovery() { Err(Error::Recovery.into()) } else { Ok(shared) }
}

/// The same for a verb that writes.
pub fn enter_writing(verb: &'static str) -> Result<&'static Shared> {
    let shared = enter()?;
    spi::require_writes(verb)?;
    Ok(shared)
}

thread_local! {
    /// Whether recovery has been seen to be over, which it is for good.
    static RECOVERED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is a standby.
pub fn in_recovery() -> bool {
    let recovered = RECOVERED.get() || !server::is_in_recovery();
    RECOVERED.set(recovered);
    !recovered
}

/// Tables that are opened once in a call, when they are first looked at. The modules that know what is in them open
/// them.
#[derive(Default)]
pub struct Tables {
    pub declarations: OnceCell<Table>,
    pub waiters: OnceCell<Table>,
}

/// A call that reads or writes rows.
pub struct Call {
    pub shared: &'static Shared,
    pub database: &'static Database,
    pub home: Home,
    /// Whose call it is.
    pub caller: Oid,
    // Closed before the connection to SPI is: what they have in memory may be of its.
    pub tables: Tables,
    db: OnceCell<Db>,
}

impl Call {
    pub fn open(shared: &'static Shared) -> Result<Call> {
        order::begin();
        let home = catalog::home();
        let caller = role::current();
        let database = shared.database(home)?;
        Ok(Call { shared, database, home, caller, tables: Tables::default(), db: OnceCell::new() })
    }

    /// Returns the connection to SPI, made when the first statement is to run: many an answer needs none.
    pub fn db(&self) -> &Db {
        self.db.get_or_init(|| Db::open(self.home))
    }

    /// Finishes a write by place, or does it by a statement where the table is not plain. Returns how many rows were
    /// written.
    pub fn written(&self, by_place: Option<u64>, otherwise: &'static Statement, values: Vec<Value>) -> u64 {
        match by_place {
            Some(rows) => {
                otherwise.is_done();
                rows
            }
            None => self.db().execute(otherwise, values),
        }
    }

    /// Returns whose extension it is.
    pub fn owner(&self) -> Oid {
        catalog::owner(self.home)
    }

    pub fn seam(&self) -> Seam {
        Seam { shared: self.shared, database: self.database }
    }
}
