//! The guards of the code against faults. Each can be taken out; the model checker then finds the fault.

/// A guard of the code. A test names the property that is broken without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// A heartbeat is a compare-and-swap of the whole word. Without: it reads the word and writes it later.
    AtomicExpiry,
    /// A commit posts the resources that its transaction has noted.
    CommitPosts,
    /// An abort also posts the resources that its transaction has noted.
    AbortPosts,
    /// An abort that thaws a session asks for a rescan: others may have passed the session over.
    ThawRescans,
    /// A post is made once its change is visible. Without: before the commit.
    PostedOnceVisible,
    /// The launcher watches a prepared transaction for its end.
    PrepareIsWatched,
    /// After a start, the launcher also watches transactions that were prepared before the start.
    BootFindsPrepared,
    /// A full ring asks for a rescan. Without: the entry is dropped.
    FullRingRescans,
    /// The worker tries again if another transaction has locked something.
    BusyIsRetried,
    /// A lease with a waiter stays with its dead holder until it can be handed over. Without: the lease is freed, and
    /// the worker does not come back.
    BusyStaysDead,
    /// A pass that fails puts back the resources that it had taken out of the ring.
    JudgedIsPutBack,
    /// A pass that fails sets again the flags that it had taken.
    FlagsAreSetAgain,
    /// A fence is judged after S and F are locked.
    FenceIsJudgedLocked,
    /// A close takes S exclusively, so it waits for the session's own fenced transactions.
    CloseExcludesFenced,
    /// A release takes F exclusively.
    ReleaseExcludesFenced,
    /// A session that takes a lease from a dead one tests F.
    TakeOverTestsFence,
    /// A session that takes a lease from a dead one writes a row of the death, so the dead session stays dead over a
    /// restart.
    DeathIsWritten,
    /// A prepared transaction that has taken a dead session's lease keeps that session dead until the row of the death
    /// is visible.
    PreparedKeepsDead,
    /// A transaction that grants holds G of the grantee in share mode; one that ends the grantee holds it exclusively.
    GranteeIsLocked,
    /// A call that queues holds G of its session in share mode.
    QueueingIsLocked,
    /// The row and the slot of the grantee are read again under G.
    GranteeIsReadAgain,
    /// A free slot goes only to the first in line.
    FirstComesFirst,
    /// The row of a lease is claimed only if it is still the one that was looked at.
    SeenRowIsClaimed,
    /// A call that makes the first row of a name holds its stripe, and looks again under it.
    NameIsGuarded,
    /// A fence is drawn after the row is locked.
    FenceIsDrawnLast,
    /// Fences are raised above all history after a start.
    FencesAreRaised,
    /// A dead session leaves a tombstone for one TTL.
    Tombstone,
    /// A session whose row is from an older start lives until `t0 + ttl`. Without: no slot, no life.
    OldRowsLive,
    /// A process that has made a slot from a row reads the row again.
    RowIsReadAgain,
    /// A rescan thaws a session if its close was prepared and then rolled back.
    RescanThaws,
    /// A slot made from a row that a transaction is deleting is frozen.
    PreparedEndFreezes,
    /// A rescan is done again if it finds a lease or place of a session with only a tombstone. Another transaction may
    /// have locked that row.
    StrayIsRetried,
    /// A rescan ends a slot whose row is gone.
    RescanEndsOrphans,
    /// A rescan finds a session that was swept before its opening was committed.
    LateOpeningRescans,
    /// A successor gets its predecessor's lease in grace under a new fence. This guard and the following ones are those
    /// of [`crate::succession`].
    SuccessorGetsNewFence,
    /// The successor holds F of the old fence to the end of its transaction. Without: it tests F.
    GraceFenceIsHeld,
    /// A take-over takes F of each lease that it passes on, and leaves fenced leases.
    TakeOverExcludesFenced,
    /// A grant of a permit holds the seat of the session to the end of its transaction.
    SeatIsLocked,
    /// A grant of a permit checks whether the session has another permit.
    SeatIsLookedAt,
    /// A call that takes a permit back out of grace also holds the seat and checks.
    TakeBackHasSeat,
    /// While a slot beyond the permits is held, permits are counted and granted under the declaration's lock.
    CountIsLocked,
    /// Dead sessions that were counted as gone stay dead over a restart.
    CountedDeathIsWritten,
    /// A permit is given back if its semaphore was resized during the grant.
    ResizeIsSeen,
}
