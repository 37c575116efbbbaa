//! This transaction, and the snapshot of the calling statement.

use pgrx::pg_sys::{self, TransactionId};

/// Returns whether the transaction is READ ONLY.
pub fn is_read_only() -> bool {
    // SAFETY: a plain read
    unsafe { pg_sys::XactReadOnly }
}

fn isolation() -> u32 {
    // SAFETY: a plain read
    unsafe { pg_sys::XactIsoLevel }.cast_unsigned()
}

pub fn is_read_committed() -> bool {
    isolation() == pg_sys::XACT_READ_COMMITTED
}

/// Returns whether all statements of the transaction read one snapshot: REPEATABLE READ or SERIALIZABLE.
pub fn keeps_its_snapshot() -> bool {
    isolation() >= pg_sys::XACT_REPEATABLE_READ
}

/// Returns whether the transaction goes on after the running statement, as far as PostgreSQL knows.
pub fn is_in_block() -> bool {
    // SAFETY: reads the state of the transaction
    unsafe { pg_sys::IsInTransactionBlock(true) }
}

/// Returns the id of the transaction; 0 while the transaction has written nothing.
pub fn id_if_any() -> u32 {
    // SAFETY: a plain read
    unsafe { pg_sys::GetTopTransactionIdIfAny() }.into_inner()
}

/// Returns whether this transaction has written anything.
pub fn has_written() -> bool {
    id_if_any() != 0
}

/// Returns the id of the transaction with its epoch. Gives the transaction an id if it has none.
pub fn full_id() -> i64 {
    // SAFETY: in a transaction, and in no parallel one: no function that calls this is marked parallel safe
    unsafe { pg_sys::GetTopFullTransactionId() }.value.cast_signed()
}

/// Returns the next transaction id with its epoch.
pub fn next_full_id() -> i64 {
    // SAFETY: no preconditions
    unsafe { pg_sys::ReadNextFullTransactionId() }.value.cast_signed()
}

/// Returns when the transaction began, in microseconds since 2000. This tells the transactions of one process apart.
pub fn began_at() -> i64 {
    // SAFETY: a plain read
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// Returns whether a transaction is this one, or a part of it.
pub fn is_mine(xid: TransactionId) -> bool {
    // SAFETY: reads what this process keeps of its transaction
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xid) }
}

/// Returns whether the caller's statement sees the writes of a transaction that has ended. Under READ COMMITTED it
/// does, as each statement reads anew.
pub fn sees(xid: TransactionId) -> bool {
    // SAFETY: a plain read, in a function that a statement has called, so there is a snapshot
    let leaves_out = || unsafe { pg_sys::XidInMVCCSnapshot(xid, pg_sys::GetActiveSnapshot()) };
    !keeps_its_snapshot() || is_mine(xid) || !leaves_out()
}

/// Returns the oldest transaction that the caller's statement takes for open.
pub fn snapshot_xmin() -> TransactionId {
    // SAFETY: in a function that a statement has called, so there is a snapshot
    unsafe { (*pg_sys::GetActiveSnapshot()).xmin }
}

/// Returns the oldest transaction that is open now. A transaction that has no id yet will get a greater one.
pub fn oldest_open() -> TransactionId {
    // SAFETY: in a transaction
    unsafe { (*pg_sys::GetLatestSnapshot()).xmin }
}

/// The same, with its epoch.
pub fn oldest_open_id() -> i64 {
    widen(oldest_open().into_inner(), next_full_id().cast_unsigned()).cast_signed()
}

/// Returns the last id before `next` with these low bits. A snapshot has no id that is not yet given, nor one 2^32
/// back.
pub fn widen(xid: u32, next: u64) -> u64 {
    next - u64::from((next as u32).wrapping_sub(xid))
}

/// Returns whether a transaction is older than another.
pub fn precedes(xid: TransactionId, other: TransactionId) -> bool {
    // SAFETY: no preconditions
    unsafe { pg_sys::TransactionIdPrecedes(xid, other) }
}

/// Returns the top transaction that an id belongs to, if it is open or prepared.
pub fn open_one(xid: TransactionId) -> Option<TransactionId> {
    // SAFETY: reads PostgreSQL's list of transactions, and the parents of one that is in it
    unsafe { pg_sys::TransactionIdIsInProgress(xid).then(|| pg_sys::SubTransGetTopmostTransaction(xid)) }
}

/// Asserts in debug builds that an ERROR would be an ordinary one: no LWLock is held, and the transaction can still be
/// rolled back.
pub fn assert_may_raise() {
    // SAFETY: plain reads
    let may = || unsafe { pg_sys::InterruptHoldoffCount == 0 && pg_sys::IsTransactionState() };
    debug_assert!(may(), "too late to raise");
}

/// A subtransaction, and the time at which its transaction began.
#[derive(Clone, Copy)]
pub struct Part(pg_sys::SubTransactionId, i64);

/// Returns the subtransaction that is open now.
pub fn part() -> Part {
    // SAFETY: in a transaction
    Part(unsafe { pg_sys::GetCurrentSubTransactionId() }, began_at())
}

impl Part {
    /// Returns whether the subtransaction has neither been rolled back nor become a part of another one.
    pub fn is_open(self) -> bool {
        // SAFETY: reads what this process keeps of its transaction
        self.1 == began_at() && unsafe { pg_sys::SubTransactionIsActive(self.0) }
    }
}

/// Returns whether a transaction of this cluster was committed; `None` while it is open or prepared. PostgreSQL removes
/// the outcomes of old transactions, and to ask for a removed one is an ERROR. Such a transaction counts as committed.
pub fn outcome(xid: u32) -> Option<bool> {
    let xid = TransactionId::from(xid);
    // SAFETY: reads PostgreSQL's lists of transactions
    let has_committed = || precedes(xid, oldest_known()) || unsafe { pg_sys::TransactionIdDidCommit(xid) };
    // SAFETY: as above
    unsafe { (!pg_sys::TransactionIdIsInProgress(xid)).then(has_committed) }
}

/// Returns the oldest transaction whose outcome PostgreSQL still has.
fn oldest_known() -> TransactionId {
    // SAFETY: a plain read of shared memory, which every process has
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return (*pg_sys::ShmemVariableCache).oldestClogXid;
        #[cfg(any(feature = "pg17", feature = "pg18", feature = "pg19"))]
        return (*pg_sys::TransamVariables).oldestClogXid;
    }
}
