//! The only caller of SPI. A [`Db`] is a stretch of work done as the extension's owner, whichever role calls. A
//! [`Statement`] is one parameterised statement, whose plan is kept for the life of the backend.
//!
//! A statement runs on the latest snapshot, whatever the isolation level of the caller, as the triggers of foreign keys
//! do. Only [`Db::run_as_caller`] runs one on the caller's snapshot. So under REPEATABLE READ a refusal is an answer by
//! the latest state, not a serialization failure. The search path is pinned. Plans only look rows up by index, one by
//! one: these tables are small when a plan is made, and may be large when it is used.
//!
//! Under SERIALIZABLE a statement that reads a table takes predicate locks. By these locks, transactions that have
//! nothing in common would conflict. So the verbs of sessions read tables only by [`crate::pg::table`]. Their
//! statements only insert into tables, unless an administrator has added a trigger or the like to a table. The verbs of
//! administrators, and the worker, use statements that read.

mod value;

pub use value::Value;

use super::catalog::{self, Home};
use super::required::{self, Column};
use super::text::{Text, from_server, text_datum};
use super::transaction;
use crate::base::error::{Error, Result};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::PgSqlErrorCode as Code;
use pgrx::{FromDatum, PgTryBuilder, Uuid};
use std::ffi::{CStr, CString, c_char};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    /// A write that a verb answers for (see [`durably`]).
    Writes,
    /// A write that may be done again, or is a part of the caller's own work. Its commit waits for the disk only if the
    /// caller wishes it.
    Tidies,
}

pub struct Statement {
    sql: &'static str,
    arguments: &'static [Oid],
    kind: Kind,
    plan: AtomicPtr<pg_sys::_SPI_plan>,
    relations: OnceLock<Vec<CString>>,
}

impl Statement {
    pub const fn reads(sql: &'static str, arguments: &'static [Oid]) -> Statement {
        Statement::new(sql, arguments, Kind::Reads)
    }

    pub const fn writes(sql: &'static str, arguments: &'static [Oid]) -> Statement {
        Statement::new(sql, arguments, Kind::Writes)
    }

    pub const fn tidies(sql: &'static str, arguments: &'static [Oid]) -> Statement {
        Statement::new(sql, arguments, Kind::Tidies)
    }

    const fn new(sql: &'static str, arguments: &'static [Oid], kind: Kind) -> Statement {
        Statement { sql, arguments, kind, plan: AtomicPtr::new(std::ptr::null_mut()), relations: OnceLock::new() }
    }

    /// Locks our relations that the statement names, or raises 55P03. PostgreSQL would wait for these locks without
    /// limit, even to make the plan.
    fn lock(&'static self) {
        self.relations.get_or_init(|| named(self.sql)).iter().for_each(|name| catalog::lock_if_any(name));
    }

    /// Notes that the statement's effect has been achieved in another way.
    pub fn is_done(&self) {
        if self.kind == Kind::Writes {
            durably();
        }
    }

    fn plan(&self) -> *mut pg_sys::_SPI_plan {
        let kept = self.plan.load(Ordering::Relaxed);
        if !kept.is_null() {
            return kept;
        }
        let mut sql = self.sql.as_bytes().to_vec();
        sql.push(0);
        // SAFETY: the text ends in NUL and is copied
        let prepare = || unsafe {
            pg_sys::SPI_prepare_cursor(
                sql.as_ptr().cast(),
                self.arguments.len() as i32,
                self.arguments.as_ptr().cast_mut(),
                pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
            )
        };
        let plan = PgTryBuilder::new(AssertUnwindSafe(prepare))
            .catch_when(Code::ERRCODE_UNDEFINED_TABLE, missing)
            .catch_when(Code::ERRCODE_UNDEFINED_COLUMN, missing)
            .catch_when(Code::ERRCODE_UNDEFINED_FUNCTION, missing)
            .execute();
        // SAFETY: a kept plan lives as long as the backend
        unsafe {
            if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                pgrx::error!("could not prepare a statement of eskit_lease: {}", self.sql);
            }
            self.plan.store(plan, Ordering::Relaxed);
            plan
        }
    }
}

/// Returns our relations in the text of a statement, each once. It may return other words, but no functions.
fn named(sql: &str) -> Vec<CString> {
    let mut names: Vec<CString> = Vec::new();
    for part in sql.split("eskit_lease.").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let name = CString::new(name).ok().filter(|name| !rest.starts_with('(') && !names.contains(name));
        names.extend(name);
    }
    names
}

/// Raises that a statement names an object that does not exist.
fn missing(error: CaughtError) -> *mut pg_sys::_SPI_plan {
    let (CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)) = &error else { error.rethrow() };
    catalog::unserved(format!("PostgreSQL says: {}.", report.message()))
}

/// Makes the commit durable, whatever the caller's synchronous_commit. An answer that a crash takes back is a lie.
pub fn durably() {
    // SAFETY: in a transaction
    unsafe { pg_sys::ForceSyncCommit() };
}

/// The rights of the extension's owner. Names are looked up as the extension needs it, not as the caller has set.
pub struct AsOwner {
    caller: Oid,
    security: i32,
    settings: i32,
}

impl AsOwner {
    pub fn begin(owner: Oid) -> AsOwner {
        let (mut caller, mut security) = (Oid::INVALID, 0);
        // SAFETY: in a transaction; what is switched here is switched back by Drop, or by PostgreSQL when it raises
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut caller, &mut security);
            let restricted = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
            pg_sys::SetUserIdAndSecContext(owner, security | restricted as i32);
            let settings = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            AsOwner { caller, security, settings }
        }
    }
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        // SAFETY: restores what begin() found. When PostgreSQL has raised, the abort that follows does the rest.
        unsafe {
            pg_sys::SetUserIdAndSecContext(self.caller, self.security);
            if !std::thread::panicking() {
                pg_sys::AtEOXact_GUC(true, self.settings);
            }
        }
    }
}

/// A connection to SPI as the extension's owner.
pub struct Db {
    planner: [bool; 10],
    /// The owner's rights last as long as the connection.
    _owner: AsOwner,
}

/// Returns the planner's settings for access to rows, and whether our plans allow each. The caller's own values do not
/// count, since plans are kept. A method that is off would read rows that no statement asks for. A plan that cannot do
/// without such a method has a huge cost. PostgreSQL would compile it, which takes longer than anything done here; so
/// jit is off as well.
fn ways() -> [(*mut bool, bool); 10] {
    [
        (&raw mut pg_sys::enable_indexscan, true),
        (&raw mut pg_sys::enable_indexonlyscan, true),
        (&raw mut pg_sys::enable_tidscan, true),
        (&raw mut pg_sys::enable_nestloop, true),
        (&raw mut pg_sys::enable_seqscan, false),
        (&raw mut pg_sys::enable_bitmapscan, false),
        (&raw mut pg_sys::enable_hashjoin, false),
        (&raw mut pg_sys::enable_mergejoin, false),
        (&raw mut pg_sys::enable_sort, false),
        (&raw mut pg_sys::jit_enabled, false),
    ]
}

impl Db {
    pub fn open(home: Home) -> Db {
        transaction::assert_may_raise();
        let owner = catalog::owner(home);
        // SAFETY: in a transaction; what is switched here is switched back by Drop, or by PostgreSQL when it raises
        unsafe {
            if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 {
                pgrx::error!("eskit_lease could not connect to SPI");
            }
            let _owner = AsOwner::begin(owner);
            let planner = ways().map(|(way, may)| way.replace(may));
            Db { planner, _owner }
        }
    }

    /// Runs a statement on the latest snapshot and reads its rows.
    pub fn run<T>(&self, statement: &'static Statement, values: Vec<Value>, read: impl Fn(Row) -> T) -> Vec<T> {
        // SAFETY: in a transaction
        let latest = unsafe { pg_sys::GetLatestSnapshot() };
        self.run_on(latest, statement, values, read)
    }

    /// Runs a statement that always returns a row, such as one that reads a sequence.
    pub fn one<T>(&self, statement: &'static Statement, values: Vec<Value>, read: impl Fn(Row) -> T) -> T {
        let found = self.run(statement, values, read).pop();
        found.unwrap_or_else(|| pgrx::error!("a statement of eskit_lease gave no row: {}", statement.sql))
    }

    /// Runs a statement on the snapshot that the caller's own statement reads.
    pub fn run_as_caller<T>(
        &self,
        statement: &'static Statement,
        values: Vec<Value>,
        read: impl Fn(Row) -> T,
    ) -> Vec<T> {
        // SAFETY: in a function that a statement has called
        let active = unsafe { pg_sys::GetActiveSnapshot() };
        self.run_on(active, statement, values, read)
    }

    fn run_on<T>(
        &self,
        snapshot: pg_sys::Snapshot,
        statement: &'static Statement,
        values: Vec<Value>,
        read: impl Fn(Row) -> T,
    ) -> Vec<T> {
        statement.lock();
        let mut nulls = Vec::with_capacity(values.len());
        let mut datums = Vec::with_capacity(values.len());
        for value in values {
            let datum = value.datum();
            nulls.push(if datum.is_some() { b' ' } else { b'n' } as c_char);
            datums.push(datum.unwrap_or(Datum::from(0)));
        }
        // SAFETY: as many values as the plan has arguments, of their types; rows are read before the next statement
        unsafe {
            let code = pg_sys::SPI_execute_snapshot(
                statement.plan(),
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                statement.kind == Kind::Reads,
                true,
                0,
            );
            if code < 0 {
                pgrx::error!("a statement of eskit_lease failed with {code}: {}", statement.sql);
            }
            let table = pg_sys::SPI_tuptable;
            let rows = if table.is_null() {
                Vec::new()
            } else {
                let row = |i: usize| Row { statement, tuple: *(*table).vals.add(i), desc: (*table).tupdesc };
                let rows = (0..(*table).numvals as usize).map(|i| read(row(i))).collect();
                pg_sys::SPI_freetuptable(table);
                rows
            };
            statement.is_done();
            if statement.kind != Kind::Reads {
                pg_sys::CommandCounterIncrement();
            }
            rows
        }
    }

    /// Runs a statement whose rows do not matter. Returns how many rows it touched.
    pub fn execute(&self, statement: &'static Statement, values: Vec<Value>) -> u64 {
        self.run(statement, values, |_| ());
        // SAFETY: a plain read of what the last statement set
        unsafe { pg_sys::SPI_processed }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: restores what open() found. When PostgreSQL has raised, the abort that follows does the rest.
        unsafe {
            for ((way, _), before) in ways().into_iter().zip(self.planner) {
                way.write(before);
            }
            if !std::thread::panicking() {
                pg_sys::SPI_finish();
            }
        }
    }
}

/// A row of a result. Columns count from 1, as in SPI.
pub struct Row {
    statement: &'static Statement,
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
}

impl Row {
    pub fn get<T: FromDatum>(&self, column: i32) -> Option<T> {
        let mut null = false;
        // SAFETY: the statement's column is of the type that the caller reads
        unsafe {
            let datum = pg_sys::SPI_getbinval(self.tuple, self.desc, column, &mut null);
            T::from_datum(datum, null)
        }
    }

    /// Returns a column that no row of the statement leaves null. Raises XX001 if a row does.
    pub fn required<T: Column>(&self, column: i32) -> T {
        self.get(column).unwrap_or_else(|| self.missing(column))
    }

    #[cold]
    fn missing<T: Column>(&self, column: i32) -> T {
        let tables: Vec<_> = named(self.statement.sql).iter().map(|name| name.to_string_lossy().into_owned()).collect();
        // SAFETY: null, or a name that ends in NUL
        let name = unsafe {
            let name = pg_sys::SPI_fname(self.desc, column);
            if name.is_null() { column.to_string() } else { from_server(CStr::from_ptr(name).to_bytes()) }
        };
        required::missing(tables.join(", "), name)
    }

    pub fn text(&self, column: i32) -> String {
        self.required::<Text>(column).0
    }

    pub fn uuid(&self, column: i32) -> Uuid {
        self.required(column)
    }

    pub fn long(&self, column: i32) -> i64 {
        self.required(column)
    }

    pub fn int(&self, column: i32) -> i32 {
        self.required(column)
    }
}

/// Runs utility statements with the rights of the caller, who gets PostgreSQL's own errors.
pub fn run_as_caller(sql: &str) {
    // SAFETY: the text ends in NUL, and outlives its use
    unsafe {
        let text = pg_sys::text_to_cstring(text_datum(sql).cast_mut_ptr());
        if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 || pg_sys::SPI_execute(text, false, 0) < 0 {
            pgrx::error!("a statement of eskit_lease failed: {sql}");
        }
        pg_sys::SPI_finish();
    }
}

/// Returns the next number of one of our sequences. Raises 55P03 if another process has the sequence locked.
pub fn next(sequence: &'static CStr) -> i64 {
    unsafe extern "C-unwind" {
        fn nextval_internal(relid: Oid, check_permissions: bool) -> i64;
    }
    // PostgreSQL would wait for the lock without limit, behind processes that wait for a transaction that has drawn a
    // number.
    catalog::lock(sequence);
    let sequence = catalog::needed(sequence);
    // SAFETY: in a transaction; what PostgreSQL raises inside becomes a panic at the boundary, over which no destructor
    // is pending
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Refuses a verb that writes in a READ ONLY transaction.
pub fn require_writes(verb: &'static str) -> Result<()> {
    if transaction::is_read_only() { Err(Error::ReadOnly(verb).into()) } else { Ok(()) }
}
