//! The indexes of a table whose rows are written by address: this does what the executor would do for a row.

use crate::pg::spi::AsOwner;
use pgrx::PgList;
use pgrx::pg_sys::{self, HeapTuple, Relation, TupleTableSlot};

/// The indexes of a table, open for new rows.
pub(super) struct Indexes {
    executor: *mut pg_sys::EState,
    relations: *mut pg_sys::ResultRelInfo,
    /// Whether a row may make an index call a function that is not PostgreSQL's own.
    calls: bool,
}

impl Indexes {
    /// Opens the indexes of a table, for as long as its slot lives. An administrator who adds or drops an index waits
    /// for the transactions that have opened the table before.
    ///
    /// # Safety
    /// The table is open, and the slot is for its rows.
    pub(super) unsafe fn open(table: Relation, slot: *mut TupleTableSlot) -> Indexes {
        // SAFETY: close() ends what is made here, or PostgreSQL does after an error; all of it must live as long as the
        // table, as the context of the table's slot does
        unsafe {
            let context = pg_sys::MemoryContextSwitchTo((*slot).tts_mcxt);
            let executor = pg_sys::CreateExecutorState();
            let relations = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*relations).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(relations, table, 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(relations, false);
            pg_sys::MemoryContextSwitchTo(context);
            let count = usize::try_from((*relations).ri_NumIndices).unwrap_or(0);
            let calls = (0..count).any(|i| {
                let index = *(*relations).ri_IndexRelationInfo.add(i);
                !all_plain((*index).ii_Expressions) || !all_plain((*index).ii_Predicate)
            });
            Indexes { executor, relations, calls }
        }
    }

    /// Adds a version of a row to the indexes.
    ///
    /// # Safety
    /// The row, the indexes and the slot belong to the table.
    pub(super) unsafe fn add(&self, table: Relation, slot: *mut TupleTableSlot, row: HeapTuple, version: Version) {
        // SAFETY: as the caller promises; the executor has a context of its own for what it needs for a row
        unsafe {
            // An administrator's index may compute something. The caller's rights must not apply to that, nor the
            // caller's search path.
            let _owner = self.calls.then(|| AsOwner::begin((*(*table).rd_rel).relowner));
            pg_sys::ExecForceStoreHeapTuple(row, slot, false);
            ((*slot).tts_tid, (*slot).tts_tableOid) = ((*row).t_self, (*table).rd_id);
            index_insert(self.relations, slot, self.executor, version);
            if let Some(context) = (*self.executor).es_per_tuple_exprcontext.as_ref() {
                pg_sys::MemoryContextReset(context.ecxt_per_tuple_memory);
            }
        }
    }

    /// Ends what open() has made.
    pub(super) unsafe fn close(self) {
        // SAFETY: once, in the transaction in which they were opened
        unsafe {
            pg_sys::ExecCloseIndices(self.relations);
            pg_sys::FreeExecutorState(self.executor);
            pg_sys::pfree(self.relations.cast());
        }
    }
}

/// Returns whether expressions of an index have only columns, constants and PostgreSQL's own operators, as ours have.
unsafe fn all_plain(expressions: *mut pg_sys::List) -> bool {
    // SAFETY: a list of expressions, or none
    unsafe { PgList::from_pg(expressions).iter_ptr().all(|expression| is_plain(expression)) }
}

unsafe fn is_plain(expression: *mut pg_sys::Node) -> bool {
    // SAFETY: a node is what its tag says
    unsafe {
        match (*expression).type_ {
            pg_sys::NodeTag::T_Var | pg_sys::NodeTag::T_Const => true,
            pg_sys::NodeTag::T_NullTest => is_plain((*expression.cast::<pg_sys::NullTest>()).arg.cast()),
            pg_sys::NodeTag::T_OpExpr => {
                let operator = &*expression.cast::<pg_sys::OpExpr>();
                operator.opfuncid.to_u32() < pg_sys::FirstNormalObjectId && all_plain(operator.args)
            }
            _ => false,
        }
    }
}

/// What the indexes must learn of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// The row is new.
    First,
    /// The row has changed, and all indexes must learn its new address.
    Moved,
    /// The row has changed within its page. Only indexes that do not tell the rows of a page apart must learn of that.
    InPlace,
}

/// Adds the row that a slot holds to the open indexes.
unsafe fn index_insert(
    into: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    executor: *mut pg_sys::EState,
    version: Version,
) {
    let (none, no_conflict) = (std::ptr::null_mut(), std::ptr::null_mut());
    #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
    let changed = version != Version::First;
    #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
    let summaries = version == Version::InPlace;
    #[cfg(feature = "pg19")]
    let flags = match version {
        Version::First => 0,
        Version::Moved => pg_sys::EIIT_IS_UPDATE,
        Version::InPlace => pg_sys::EIIT_IS_UPDATE | pg_sys::EIIT_ONLY_SUMMARIZING,
    };
    // SAFETY: as the caller has made them
    unsafe {
        #[cfg(feature = "pg15")]
        pg_sys::ExecInsertIndexTuples(into, slot, executor, changed, false, none, no_conflict);
        #[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
        pg_sys::ExecInsertIndexTuples(into, slot, executor, changed, false, none, no_conflict, summaries);
        #[cfg(feature = "pg19")]
        pg_sys::ExecInsertIndexTuples(into, executor, flags, slot, none, no_conflict);
    }
}
