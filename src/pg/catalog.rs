//! Lookups in the catalog by name: our relations in this database, the extension, and its owner.

use super::text::from_server;
use super::{clock, lock_timeout, server, statement};
use crate::base::error::{Error, Result, raise};
use crate::base::limits;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};

/// Where a session's rows are: its database and its table of sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    pub database: u32,
    pub table: u32,
}

/// The parts of the extension that were found in this database. A name alone proves nothing: a role that may create
/// schemas can use our schema's name if the database lacks the extension, or if the extension's schema was renamed. So
/// only these are ours: the schema and relations that are members of the extension, and the indexes of such relations.
#[derive(Default)]
struct Found {
    /// The schema, and the extension.
    schema: Option<(Oid, Oid)>,
    /// Relations, by the address of their name. Every call looks some of them up.
    relations: Vec<(*const c_char, Oid)>,
    /// Relations that are known to be members.
    members: Vec<Oid>,
    /// Counts how often something was forgotten. A result that was read at an earlier count must not be kept.
    forgotten: u64,
}

thread_local! {
    static FOUND: RefCell<Option<Found>> = const { RefCell::new(None) };
    /// Whether this backend may wait without limit for a lock on one of our tables.
    static PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Forgets the relations when a relation is created, changed or dropped, and everything when a schema is: a relation
/// stays a member for as long as its schema does.
unsafe extern "C-unwind" fn forget(_: Datum, cache: std::ffi::c_int, _: u32) {
    FOUND.with_borrow_mut(|found| {
        let Some(found) = found else { return };
        found.forgotten += 1;
        found.relations.clear();
        let schemas: std::ffi::c_int = pg_sys::SysCacheIdentifier::NAMESPACENAME as _;
        if cache == schemas {
            found.members.clear();
            found.schema = None;
        }
    });
}

/// Reads what has been found. The callbacks are registered once.
fn found<T>(read: impl FnOnce(&mut Found) -> T) -> T {
    if FOUND.with_borrow(Option::is_none) {
        for cache in [pg_sys::SysCacheIdentifier::RELNAMENSP, pg_sys::SysCacheIdentifier::NAMESPACENAME] {
            // SAFETY: a function that lives as long as the process
            unsafe { pg_sys::CacheRegisterSyscacheCallback(cache as _, Some(forget), Datum::from(0)) };
        }
    }
    FOUND.with_borrow_mut(|found| read(found.get_or_insert_default()))
}

/// Keeps a result of the catalog, unless something has been forgotten since it was read.
fn keep(since: u64, keep: impl FnOnce(&mut Found)) {
    found(|found| {
        if found.forgotten == since {
            keep(found);
        }
    });
}

/// Returns the schema of the extension, and the extension. Returns `None` in a database without it, or if its schema
/// has been renamed.
fn schema() -> Option<(Oid, Oid)> {
    let (known, since) = found(|found| (found.schema, found.forgotten));
    if known.is_some() {
        return known;
    }
    // SAFETY: reads the catalog, in a transaction
    let schema = unsafe { pg_sys::get_namespace_oid(c"eskit_lease".as_ptr(), true) };
    if schema == Oid::INVALID {
        return None;
    }
    let extension = extension()?;
    // SAFETY: as above
    if unsafe { pg_sys::getExtensionOfObject(pg_sys::NamespaceRelationId, schema) } != extension {
        return None;
    }
    keep(since, |found| found.schema = Some((schema, extension)));
    Some((schema, extension))
}

/// Returns whether a relation, or the table of an index, is a member of the extension.
fn is_member(relation: Oid, extension: Oid) -> bool {
    // SAFETY: reads the catalog, in a transaction
    unsafe {
        let is_index = pg_sys::get_rel_relkind(relation) as u8 == pg_sys::RELKIND_INDEX;
        let table = if is_index { pg_sys::IndexGetRelation(relation, true) } else { relation };
        pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, table) == extension
    }
}

/// Returns whether a relation is ours, whatever its schema.
#[cfg(feature = "pg19")]
pub fn is_ours(relation: Oid) -> bool {
    extension().is_some_and(|extension| is_member(relation, extension))
}

/// Returns the oid of a table, index or sequence of ours; zero in a database without the extension.
pub fn relation(name: &'static CStr) -> Oid {
    let known = found(|found| found.relations.iter().find(|known| known.0 == name.as_ptr()).map(|known| known.1));
    if let Some(known) = known {
        return known;
    }
    let Some((schema, extension)) = schema() else { return Oid::INVALID };
    let since = found(|found| found.forgotten);
    // SAFETY: reads the catalog through its cache, in a transaction
    let oid = unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) };
    if oid == Oid::INVALID {
        return oid;
    }
    let is_known = found(|found| found.members.contains(&oid));
    if !is_known && !is_member(oid, extension) {
        return Oid::INVALID;
    }
    keep(since, |found| {
        found.relations.push((name.as_ptr(), oid));
        if !is_known {
            found.members.push(oid);
        }
    });
    oid
}

/// Locks one of our tables for changes of rows, to the end of the transaction. Returns false if another process has a
/// lock that conflicts.
pub fn try_lock(table: &'static CStr) -> bool {
    try_lock_oid(needed(table))
}

fn try_lock_oid(table: Oid) -> bool {
    // SAFETY: in a transaction; if the table is dropped meanwhile, the lock has no meaning and does no harm
    unsafe { pg_sys::ConditionalLockRelationOid(table, pg_sys::RowExclusiveLock as i32) }
}

/// Lets this backend wait without limit for locks on our tables from now on. The worker does so: no caller waits for
/// its answer.
pub fn be_patient() {
    PATIENT.set(true);
}

pub fn is_patient() -> bool {
    PATIENT.get()
}

thread_local! {
    /// The start of the call's statement, and for how many microseconds the call has waited for locks. A trigger and an
    /// act at the commit do not begin a call.
    static WAITED: Cell<(i64, u64)> = const { Cell::new((0, 0)) };
}

/// Begins a call of a verb, which has patience of its own. One call may take a lock many times: a bulk call does so for
/// each of its batches.
pub fn begin_call() {
    WAITED.set((0, 0));
}

/// Tries for a lock again and again, for as long as the call has patience left. Returns whether the lock was taken.
fn soon(attempt: impl Fn() -> bool) -> bool {
    if attempt() {
        return true;
    }
    let of = statement::began_at();
    let (_, waited) = Some(WAITED.get()).filter(|(known, _)| *known == of).unwrap_or_default();
    let most = lock_timeout::of_caller().unwrap_or(limits::CATALOG_PATIENCE).min(limits::CATALOG_PATIENCE);
    let began = clock::now();
    let until = began + most.saturating_sub(waited);
    let mut taken = false;
    while !taken && clock::now() < until {
        pgrx::check_for_interrupts!();
        clock::pause(limits::CATALOG_PAUSE);
        taken = attempt();
    }
    WAITED.set((of, waited + clock::now().saturating_sub(began)));
    taken
}

/// Locks one of our tables or sequences, for changes of rows or for drawing numbers, to the end of the transaction.
/// VACUUM FULL, REINDEX and ALTER SEQUENCE keep all others out while they wait for an open transaction. So a call gives
/// up soon. Returns whether the lock was taken.
fn lock_soon(relation: Oid) -> bool {
    if try_lock_oid(relation) {
        return true;
    }
    if PATIENT.get() {
        // SAFETY: in a transaction
        unsafe { pg_sys::LockRelationOid(relation, pg_sys::RowExclusiveLock as i32) };
        return true;
    }
    soon(|| try_lock_oid(relation))
}

/// Locks one of our tables or sequences to the end of the transaction, or raises 55P03 soon.
pub fn lock(name: &'static CStr) {
    needed(name);
    lock_if_any(name);
}

/// Locks one of our tables or sequences like [`lock`], if this version of the SQL has it.
pub fn lock_if_any(name: &'static CStr) {
    let oid = relation(name);
    if oid != Oid::INVALID && !lock_soon(oid) {
        raise(Error::TableLocked { table: name.to_string_lossy().into_owned() });
    }
}

/// Locks those of these tables and sequences that this version of the SQL has. Returns false if it cannot lock one.
/// A verb that can answer with a reason, such as `busy`, calls this before it begins.
pub fn lock_all(tables: &[&'static CStr]) -> bool {
    tables.iter().map(|table| relation(table)).all(|oid| oid == Oid::INVALID || lock_soon(oid))
}

/// Returns the oid of a relation that must exist. Raises if it does not.
pub fn needed(name: &'static CStr) -> Oid {
    let oid = relation(name);
    if oid == Oid::INVALID {
        unserved(format!("There is no relation {}.", name.to_string_lossy()));
    }
    oid
}

/// Returns where the rows of this database are; `None` without the extension.
pub fn home_if_any() -> Option<Home> {
    let table = relation(c"_sessions");
    (table != Oid::INVALID).then(|| Home { database: server::database(), table: table.to_u32() })
}

/// Locks all our tables and sequences with these names, without waiting. Returns whether it has all locks.
pub fn try_lock_all(names: &[&'static CStr]) -> bool {
    names.iter().map(|name| relation(name)).all(|oid| oid == Oid::INVALID || try_lock_oid(oid))
}

/// Returns where the rows of this database are. Raises without the extension.
pub fn home() -> Home {
    home_if_any().unwrap_or_else(|| gone())
}

/// Raises that the extension has been dropped since the running statement began, or that its schema was renamed.
pub fn gone() -> ! {
    let is_elsewhere = extension().is_some() && schema().is_none();
    raise(if is_elsewhere { Error::SchemaRenamed } else { Error::NoExtension })
}

/// Raises that the objects of this database are not those that this library needs, or are all gone. See
/// [`crate::pg::version`].
pub fn unserved(why: String) -> ! {
    // A process learns of a commit's changes in parts: it may know that one table is gone, and not yet that all are.
    // SAFETY: in a transaction
    unsafe { pg_sys::AcceptInvalidationMessages() };
    if extension().is_none() || home_if_any().is_none() {
        gone();
    }
    raise(Error::Unserved(why))
}

/// Returns whether a function of ours exists with arguments of these types. Former versions have fewer functions.
pub fn has_function(name: &CStr, arguments: &[Oid]) -> bool {
    let Some((schema, _)) = schema() else { return false };
    // SAFETY: in a transaction; reads the catalog through its caches; the vector has as many types as are given
    unsafe {
        let types = pg_sys::buildoidvector(arguments.as_ptr(), arguments.len() as i32);
        let (name, types) = (Datum::from(name.as_ptr()), Datum::from(types));
        let cache = pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as _;
        pg_sys::SearchSysCacheExists(cache, name, types, Datum::from(schema), Datum::from(0))
    }
}

/// Returns whether a function is ours and has this name.
pub fn is_function(function: Oid, name: &CStr) -> bool {
    // SAFETY: reads the catalog through its caches, in a transaction; a function has a name as long as a statement
    // calls it
    let has_name = || unsafe {
        let found = pg_sys::get_func_name(function);
        !found.is_null() && CStr::from_ptr(found) == name
    };
    // SAFETY: as above
    schema().is_some_and(|(schema, _)| unsafe { pg_sys::get_func_namespace(function) } == schema) && has_name()
}

/// Returns whether the objects of this database are of 0.3.0 or later. Such objects have today's names and SQLSTATEs.
pub fn has_objects_of_today() -> bool {
    has_function(c"position_next", &[])
}

/// Returns whether the function `session_wait_many` exists, and with it the column `retry_ms` in the answers of waits.
pub fn has_wait_many() -> bool {
    has_function(c"session_wait_many", &[pg_sys::UUIDARRAYOID, pg_sys::INT8ARRAYOID, pg_sys::INTERVALOID])
}

/// Returns the oid of the extension, as committed now. It asks no cache, as a cache may not reflect the commit yet.
pub fn extension() -> Option<Oid> {
    // SAFETY: in a transaction; reads the catalog
    Some(unsafe { pg_sys::get_extension_oid(c"eskit_lease".as_ptr(), true) }).filter(|oid| *oid != Oid::INVALID)
}

/// Keeps the extension from being dropped, to the end of the transaction. Waits for a transaction that is dropping it.
pub fn lock_extension() {
    let mut found = extension();
    while let Some(oid) = found {
        // SAFETY: in a transaction; PostgreSQL tells the waiting process what has changed meanwhile
        unsafe { pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, oid, 0, pg_sys::AccessShareLock as i32) };
        // During the wait the extension may have been made anew, and the new one is not locked.
        found = extension();
        if found == Some(oid) {
            return;
        }
    }
}

/// Keeps the extension from being dropped, like [`lock_extension`], but gives up soon. Returns whether the lock was
/// taken.
pub fn lock_extension_soon() -> bool {
    let Some(oid) = extension() else { return false };
    // SAFETY: in a transaction
    let attempt = || unsafe {
        pg_sys::ConditionalLockDatabaseObject(pg_sys::ExtensionRelationId, oid, 0, pg_sys::AccessShareLock as i32)
    };
    // During the wait the extension may have been made anew, and the new one is not locked.
    soon(attempt) && extension() == Some(oid)
}

/// The sequence from which fences are drawn.
pub const FENCES: &CStr = c"fence_seq";

pub fn fence_sequence() -> Oid {
    relation(FENCES)
}

/// Returns the owner of the tables, who also owns the extension.
pub fn owner(home: Home) -> Oid {
    // SAFETY: in a transaction; the tuple of pg_class is released after its one field has been read
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as _, Datum::from(home.table));
        if tuple.is_null() {
            gone();
        }
        let class = pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(tuple);
        let owner = (*class).relowner;
        pg_sys::ReleaseSysCache(tuple);
        owner
    }
}

#[cfg(feature = "pg15")]
unsafe fn is_owner(table: Oid, role: Oid) -> bool {
    // SAFETY: reads the catalog through its cache; raises for a table that has been dropped
    unsafe { pg_sys::pg_class_ownercheck(table, role) }
}

#[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18", feature = "pg19"))]
unsafe fn is_owner(table: Oid, role: Oid) -> bool {
    // SAFETY: as above
    unsafe { pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, role) }
}

/// Returns the name of a table; `None` if it has been dropped.
pub fn table_name(table: Oid) -> Option<String> {
    // SAFETY: reads the catalog through its cache; null, or a name that ends in NUL
    unsafe {
        let name = pg_sys::get_rel_name(table);
        (!name.is_null()).then(|| from_server(CStr::from_ptr(name).to_bytes()))
    }
}

/// Returns the name of this database.
pub fn database_name() -> String {
    // SAFETY: reads the catalog through its cache; null, or a name that ends in NUL
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        if name.is_null() { String::new() } else { from_server(CStr::from_ptr(name).to_bytes()) }
    }
}

/// Refuses a user's table that the caller does not own.
pub fn require_owner(table: Oid) -> Result<()> {
    // SAFETY: reads the catalog through its cache; the name ends in NUL
    unsafe {
        let name = pg_sys::get_rel_name(table);
        if name.is_null() {
            return Err(Error::NoTable(table.to_u32()).into());
        }
        if !is_owner(table, pg_sys::GetUserId()) {
            let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(table));
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NOT_OWNER, kind, name);
        }
    }
    Ok(())
}
