//! The guards of the code against faults. Each can be taken out, and the checker then finds the fault.

/// A guard of the code; without it, the property that is named is violated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// A heartbeat is a compare-and-swap of the whole word. Without: it reads the word and writes it later.
    AtomicExpiry,
    /// A commit posts what its transaction has noted.
    CommitPosts,
    /// So does an abort.
    AbortPosts,
    /// And an abort that thaws a session has all looked through that it may have been passed over for.
    ThawRescans,
    /// A post is made once its change is visible. Without: before the commit.
    PostedOnceVisible,
    /// A prepared transaction is watched for its end.
    PrepareIsWatched,
    /// After a start, those are watched that were prepared before it.
    BootFindsPrepared,
    /// A full ring asks for a rescan. Without: the entry is dropped.
    FullRingRescans,
    /// What another transaction has in hand is tried again.
    BusyIsRetried,
    /// What the dead hold and a session waits for stays theirs until it can be handed over. Without: it is freed, and
    /// the worker does not come back.
    BusyStaysDead,
    /// A pass that fails puts back what it had taken out of the ring.
    JudgedIsPutBack,
    /// And sets the flags again that it had taken.
    FlagsAreSetAgain,
    /// A fence is judged after S and F are had.
    FenceIsJudgedLocked,
    /// A close takes S exclusively, so it waits for the session's own fenced transactions.
    CloseExcludesFenced,
    /// A release takes F exclusively.
    ReleaseExcludesFenced,
    /// A session that takes over from the dead tests F.
    TakeOverTestsFence,
    /// A session that takes over writes that the dead are dead, over a restart too.
    DeathIsWritten,
    /// And if it is prepared keeps them so until all can see that.
    PreparedKeepsDead,
    /// A transaction that grants has G of the grantee in share mode; one that ends the grantee has it exclusively.
    GranteeIsLocked,
    /// So does a call that queues, with G of its session.
    QueueingIsLocked,
    /// The row and the slot of the grantee are read again after that.
    GranteeIsReadAgain,
    /// A free slot goes only to the first in line.
    FirstComesFirst,
    /// The row of a lease is claimed only if it is still the one that was looked at.
    SeenRowIsClaimed,
    /// A call that makes the first row of a name holds its stripe, and looks again under it.
    NameIsGuarded,
    /// A fence is drawn with the row in hand.
    FenceIsDrawnLast,
    /// Fences are raised above all history after a start.
    FencesAreRaised,
    /// A dead session leaves a tombstone for one TTL.
    Tombstone,
    /// A row of an older start lives until `t0 + ttl`. Without: no slot, no life.
    OldRowsLive,
    /// A process that has made a slot from a row reads the row again.
    RowIsReadAgain,
    /// A rescan thaws the session whose close was prepared and has been rolled back.
    RescanThaws,
    /// A slot that is made from a row that is being deleted is frozen.
    PreparedEndFreezes,
    /// A rescan that has found something of a session with only a tombstone is done again: another transaction may have
    /// it in hand.
    StrayIsRetried,
    /// A rescan ends the slot whose row is gone.
    RescanEndsOrphans,
    /// A session that was swept before its opening was committed is found by a rescan.
    LateOpeningRescans,
    /// A successor gets what is in grace of its predecessor under a new fence. From here on: [`crate::succession`].
    SuccessorGetsNewFence,
    /// The successor holds F of the old fence to the end of its transaction. Without: it tests F.
    GraceFenceIsHeld,
    /// A take-over takes F of each lease that it passes on, and leaves what is fenced.
    TakeOverExcludesFenced,
    /// A grant of a permit holds the seat of the session to the end of its transaction.
    SeatIsLocked,
    /// The grant sees that the session has no other permit.
    SeatIsLookedAt,
    /// A call that takes a permit back out of grace does the same.
    TakeBackHasSeat,
    /// While a slot beyond the permits is held, permits are counted and granted under the declaration's lock.
    CountIsLocked,
    /// The dead that were counted as gone stay dead over a restart.
    CountedDeathIsWritten,
    /// A permit granted of a semaphore that has been resized meanwhile is given back.
    ResizeIsSeen,
}
