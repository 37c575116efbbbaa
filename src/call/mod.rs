//! One call of a verb: what every verb needs, checked once at its entry.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::catalog::{self, Home};
use crate::pg::spi::{Db, Statement, Value};
use crate::pg::table::Table;
use crate::pg::text::Text;
use crate::seam::Seam;
use crate::shmem::databases::Database;
use crate::shmem::{Shared, shared};
use pgrx::PgList;
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, OnceCell};
use std::ffi::CStr;

/// Shared memory, on a server that is neither without it nor in recovery.
pub fn enter() -> Result<&'static Shared> {
    let shared = shared()?;
    if in_recovery() { Err(Error::Recovery.into()) } else { Ok(shared) }
}

thread_local! {
    /// Whether recovery has been seen to be over, which it is for good.
    static RECOVERED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a standby.
pub fn in_recovery() -> bool {
    // SAFETY: no preconditions in a backend
    let recovered = RECOVERED.get() || unsafe { !pg_sys::RecoveryInProgress() };
    RECOVERED.set(recovered);
    !recovered
}

/// Whether this transaction has written anything.
pub fn has_written() -> bool {
    // SAFETY: a plain read
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}

/// Whether the transaction ends with the answer of the verb that was just entered: a client's own SELECT outside a
/// transaction block has called it, or the worker. PostgreSQL does not count DO, a procedure, a function of a user and
/// a trigger as blocks, though they may go on for long: there another query than the client's has called. Of a pipeline
/// PostgreSQL knows from its second statement on.
pub fn ends_with_answer() -> bool {
    // SAFETY: plain reads; a portal that runs a SELECT has the state of its query, which lives in a context of that
    // name
    unsafe {
        if pg_sys::IsInTransactionBlock(true) {
            return false;
        }
        let Some(portal) = pg_sys::ActivePortal.as_ref() else { return true };
        let Some(query) = portal.queryDesc.as_ref() else { return false };
        let mut context = pg_sys::CurrentMemoryContext;
        while let Some(inner) = context.as_ref()
            && CStr::from_ptr(inner.name) != c"ExecutorState"
        {
            context = inner.parent;
        }
        query.estate.as_ref().is_some_and(|state| state.es_query_cxt == context)
    }
}

/// Whether a DO statement or a procedure has called, by a statement of its own or by a function. It may go on for long,
/// and PostgreSQL counts none as a transaction block. A cursor has a portal of its own: so the client's portal is
/// looked at too, which mostly has no name.
pub fn runs_code() -> bool {
    // SAFETY: plain reads; a portal that is active has its statements
    unsafe {
        let runs = |portal: *mut pg_sys::PortalData| {
            portal
                .as_ref()
                .is_some_and(|portal| portal.status == pg_sys::PortalStatus::PORTAL_ACTIVE && is_code(portal))
        };
        pg_sys::SPI_inside_nonatomic_context()
            || runs(pg_sys::ActivePortal)
            || runs(pg_sys::GetPortalByName(c"".as_ptr()))
    }
}

/// Whether a portal is that of a DO statement or a procedure.
unsafe fn is_code(portal: &pg_sys::PortalData) -> bool {
    // SAFETY: a list of planned statements, or none
    unsafe {
        PgList::<pg_sys::PlannedStmt>::from_pg(portal.stmts).iter_ptr().any(|statement| {
            let utility = (*statement).utilityStmt.as_ref().map(|utility| utility.type_);
            matches!(utility, Some(pg_sys::NodeTag::T_DoStmt | pg_sys::NodeTag::T_CallStmt))
        })
    }
}

/// Tables that are opened once in a call, by those who know what is in them, when they are first looked at.
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
        let home = catalog::home();
        // SAFETY: a plain read
        let caller = unsafe { pg_sys::GetUserId() };
        let database = shared.database(home)?;
        Ok(Call { shared, database, home, caller, tables: Tables::default(), db: OnceCell::new() })
    }

    /// The connection to SPI, made when the first statement is to run: many an answer needs none.
    pub fn db(&self) -> &Db {
        self.db.get_or_init(|| Db::open(self.home))
    }

    /// Finishes a write by place, or does it by a statement where the table is not plain. How many rows were written.
    pub fn written(&self, by_place: Option<u64>, otherwise: &'static Statement, values: Vec<Value>) -> u64 {
        match by_place {
            Some(rows) => {
                otherwise.is_done();
                rows
            }
            None => self.db().execute(otherwise, values),
        }
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
    if (1..=limits::MAX_NAME).contains(&name.len()) {
        Ok(name)
    } else {
        Err(Error::Name { what, length: name.len() }.into())
    }
}
