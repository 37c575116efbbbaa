//! One call of a verb: what every verb needs, checked once at its start.
//!
//! Files, low to high: argument, mod.

mod argument;

pub use argument::{Given, names_arg, text_arg};

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::catalog::{self, Home};
use crate::pg::spi::{self, Db, Statement, Value};
use crate::pg::table::Table;
use crate::pg::{order, role, server};
use crate::seam::Seam;
use crate::shmem::databases::Database;
use crate::shmem::{Shared, shared};
use pgrx::pg_sys::Oid;
use std::cell::{Cell, OnceCell};

/// Returns shared memory. Fails if this library has not made it, and on a server in recovery.
pub fn enter() -> Result<&'static Shared> {
    let shared = shared()?;
    catalog::begin_call();
    if in_recovery() { Err(Error::Recovery.into()) } else { Ok(shared) }
}

/// Returns shared memory for a verb that writes. Fails in a READ ONLY transaction, too.
pub fn enter_writing(verb: &'static str) -> Result<&'static Shared> {
    let shared = enter()?;
    spi::require_writes(verb)?;
    Ok(shared)
}

thread_local! {
    /// Whether this process has seen that recovery is over; it does not begin again.
    static RECOVERED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this server is in recovery, as a standby is, or a server that starts after a crash.
pub fn in_recovery() -> bool {
    let recovered = RECOVERED.get() || !server::is_in_recovery();
    RECOVERED.set(recovered);
    !recovered
}

/// Tables that a call opens once, when it first looks at them. The modules that know their rows open them.
#[derive(Default)]
pub struct Tables {
    pub declarations: OnceCell<Table>,
    pub names: OnceCell<Table>,
    pub waiters: OnceCell<Table>,
}

/// A call that reads or writes rows.
pub struct Call {
    pub shared: &'static Shared,
    pub database: &'static Database,
    pub home: Home,
    /// The role that calls.
    pub caller: Oid,
    // The tables close before the connection to SPI does, since their memory may belong to the connection.
    pub tables: Tables,
    /// How often the call may still pause for a stripe.
    pub stripe_pauses: Cell<u32>,
    db: OnceCell<Db>,
}

impl Call {
    pub fn open(shared: &'static Shared) -> Result<Call> {
        order::begin();
        let home = catalog::home();
        let caller = role::current();
        let database = shared.database(home)?;
        let stripe_pauses = Cell::new(limits::STRIPE_PAUSES);
        Ok(Call { shared, database, home, caller, tables: Tables::default(), stripe_pauses, db: OnceCell::new() })
    }

    /// Returns the connection to SPI. It is made for the first statement: many an answer needs none.
    pub fn db(&self) -> &Db {
        self.db.get_or_init(|| Db::open(self.home))
    }

    /// Finishes a write. `by_place`: how many rows were written by address. If it is `None` the table is not plain, and
    /// the statement `otherwise` does the write. Returns how many rows were written.
    pub fn written(&self, by_place: Option<u64>, otherwise: &'static Statement, values: Vec<Value>) -> u64 {
        match by_place {
            Some(rows) => {
                otherwise.is_done();
                rows
            }
            None => self.db().execute(otherwise, values),
        }
    }

    /// Returns the owner of the extension.
    pub fn owner(&self) -> Oid {
        catalog::owner(self.home)
    }

    pub fn seam(&self) -> Seam {
        Seam { shared: self.shared, database: self.database }
    }
}
