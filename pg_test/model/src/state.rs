//! The state: rows, shared memory, transactions.

use crate::set::Set;

pub const SESSIONS: usize = 3;
pub const RESOURCES: usize = 2;
/// Transactions of clients that are open, or prepared, at one time.
pub const CLIENTS: usize = 3;
/// The number of the worker's transaction; those of clients are below.
pub const WORKER: usize = CLIENTS;

/// The row of a lease. Released: it has no holder, and keeps its fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    pub holder: Option<u8>,
    pub fence: u8,
}

impl Row {
    pub fn is_of(self, session: usize) -> bool {
        self.holder == Some(session as u8)
    }
}

/// A lease: the row that is committed, who has it locked, and what that transaction makes of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    pub row: Option<Row>,
    pub by: Option<u8>,
    pub new: Option<Row>,
}

/// A row that is written once and deleted once: a session's own, or its place in a queue.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fact {
    #[default]
    Absent,
    Inserting(u8),
    Stands,
    Locked(u8),
    Deleting(u8),
}

/// A session's place in the queue of a resource; the lower number comes first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub fact: Fact,
    pub number: u8,
}

/// The state of a slot's word.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Word {
    #[default]
    Free,
    Alive,
    Frozen,
    Dead,
    Gone,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session {
    pub row: Fact,
    /// The row was written before the last start of shared memory.
    pub old: bool,
    pub word: Word,
    /// `t0 + ttl` is past, which is the deadline of an old row.
    pub past: bool,
    /// The transaction that opened it, while that is in progress.
    pub opened_by: Option<u8>,
    /// A process has found no slot and read the row, and has not made the slot yet.
    pub reading: bool,
    /// A process has read a living word and not written it yet; only without the compare-and-swap.
    pub beating: bool,
    /// It has been dead in this start of shared memory.
    pub dead: bool,
    /// And something has been taken from it, which is committed: it has a row of its death.
    pub taken: bool,
    pub places: [Place; RESOURCES],
    /// The leases that it has been told that it holds, within a time that it may trust.
    pub trusts: Set,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    #[default]
    Idle,
    Open,
    /// Has looked at a lease and seen what may be had.
    Wants {
        resource: u8,
        seen: Option<Row>,
        /// Drawn already; only where it is not drawn with the row in hand.
        fence: u8,
    },
    /// Has F and may have to wait for the row.
    Releases {
        resource: u8,
    },
    /// Has S and may have to wait for the row.
    Closes,
    /// Has found out whose a fence is, and locked nothing yet.
    Checks {
        resource: u8,
        fence: u8,
    },
    /// The worker has taken what is dirty or dead.
    Passes,
    /// Before its commit or its preparation, the sessions that it ends are frozen.
    Frozen,
    /// Its end is visible, and no process has been told.
    Ended {
        committed: bool,
    },
    /// All is told, and its locks are still there.
    Told,
    Prepared,
}

/// A transaction: its notes, and the locks that row versions do not show.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Transaction {
    pub phase: Phase,
    /// The session that it is for.
    pub me: u8,
    pub verbs: u8,
    /// Resources noted, to be posted at its end.
    pub post: Set,
    pub opened: Set,
    pub ended: Set,
    /// Of those ended: no row is left.
    pub gone: Set,
    /// Fences that it has checked, zero for none: F in share mode.
    pub fenced: [u8; RESOURCES],
    /// F exclusively, of these fences.
    pub excludes: [u8; RESOURCES],
    /// G in share mode, and exclusively.
    pub grants: Set,
    pub buries: Set,
    /// S in share mode, of `me`, and exclusively.
    pub fences: bool,
    pub closes: Set,
    /// The dead that it has taken leases from, of whose death it has written; once it is prepared, they stay dead by a lock of its own.
    pub took_from: Set,
    pub keeps_dead: Set,
    /// Its end is watched for, once it is prepared.
    pub watched: bool,
    /// The worker's: what it has taken out of the ring, what it must still judge, and the dead sessions.
    pub judged: Set,
    pub todo: Set,
    pub dead: Set,
    pub rescans: bool,
    pub boots: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub leases: [Lease; RESOURCES],
    pub sessions: [Session; SESSIONS],
    /// The dirty ring. It also has what must be tried again later: any time may be late enough.
    pub ring: Set,
    pub rescan: bool,
    pub boot: bool,
    /// A prepared transaction that is watched has ended.
    pub ended_prepared: bool,
    /// Fences that have been drawn may be forgotten, and none has been raised above them.
    pub lost: bool,
    pub transactions: [Transaction; CLIENTS + 1],
    pub left: Budget,
    pub broken: Broken,
}

/// How often something may still happen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Budget {
    pub calls: u8,
    pub prepares: u8,
    pub crashes: u8,
}

/// In a budget: as often as it likes.
pub const ANY: u8 = u8::MAX;

/// Faults that are found in the course of a step and not seen in a state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Broken {
    pub fence_fell: bool,
    pub revived: bool,
    pub waited: bool,
    pub jumped: bool,
    pub extended: bool,
}

impl Fact {
    /// Whether a transaction sees the row: a committed one, and its own.
    pub fn seen_by(self, x: usize) -> bool {
        match self {
            Fact::Absent => false,
            Fact::Stands | Fact::Locked(_) => true,
            Fact::Inserting(by) => usize::from(by) == x,
            Fact::Deleting(by) => usize::from(by) != x,
        }
    }

    pub fn is_committed(self) -> bool {
        self.seen_by(usize::MAX)
    }

    /// Whether another transaction has the row.
    pub fn is_taken_from(self, x: usize) -> bool {
        matches!(self, Fact::Inserting(by) | Fact::Locked(by) | Fact::Deleting(by) if usize::from(by) != x)
    }

    /// The row is deleted by the transaction, which has it.
    pub fn delete(&mut self, x: usize) {
        *self = if matches!(self, Fact::Inserting(_) | Fact::Absent) { Fact::Absent } else { Fact::Deleting(x as u8) };
    }

    /// The transaction has come to its end.
    pub fn settle(&mut self, x: usize, committed: bool) {
        let mine = |by: u8| usize::from(by) == x;
        *self = match *self {
            Fact::Inserting(by) if mine(by) => {
                if committed {
                    Fact::Stands
                } else {
                    Fact::Absent
                }
            }
            Fact::Deleting(by) if mine(by) => {
                if committed {
                    Fact::Absent
                } else {
                    Fact::Stands
                }
            }
            Fact::Locked(by) if mine(by) => Fact::Stands,
            other => other,
        };
    }
}

impl Lease {
    /// The row as a transaction sees it.
    pub fn seen_by(&self, x: usize) -> Option<Row> {
        if self.is_mine(x) { self.new.or(self.row) } else { self.row }
    }

    pub fn is_mine(&self, x: usize) -> bool {
        self.by == Some(x as u8)
    }

    pub fn is_taken_from(&self, x: usize) -> bool {
        self.by.is_some() && !self.is_mine(x)
    }

    /// Another transaction is making the row, or changing it: not only locking it.
    pub fn is_in_flight(&self, x: usize) -> bool {
        self.is_taken_from(x) && self.new.is_some()
    }

    pub fn write(&mut self, x: usize, row: Row) {
        (self.by, self.new) = (Some(x as u8), Some(row));
    }
}

impl Transaction {
    /// Whether it may still come to either end: for others it is in progress.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Ended { .. } | Phase::Told)
    }

    /// Whether a client's transaction is for a session.
    pub fn is_of(&self, s: usize) -> bool {
        self.phase != Phase::Idle && usize::from(self.me) == s
    }

    pub fn is_prepared(&self) -> bool {
        self.phase == Phase::Prepared
    }

    /// Whether a process must be told of its end. The worker has judged all that it commits.
    pub fn tells(&self, x: usize, committed: bool) -> bool {
        let ends = !self.ended.is_empty() || !self.opened.is_empty() || self.fenced != [0; RESOURCES];
        let posts = !(self.post.is_empty() || committed && x == WORKER);
        let puts_back = !committed && (!self.judged.is_empty() || self.rescans || self.boots);
        ends || posts || puts_back
    }

    pub fn has_locks(&self) -> bool {
        let sets = [self.grants, self.buries, self.closes, self.keeps_dead];
        sets.iter().any(|set| !set.is_empty()) || self.fences || self.excludes != [0; RESOURCES]
    }
}

impl State {
    /// Each client has a session, and no session holds anything.
    pub fn opened() -> State {
        let session = Session { row: Fact::Stands, word: Word::Alive, ..Session::default() };
        State { sessions: [session; SESSIONS], ..State::empty() }
    }

    /// No client has a session.
    pub fn empty() -> State {
        State {
            leases: Default::default(),
            sessions: Default::default(),
            ring: Set::default(),
            rescan: false,
            boot: false,
            ended_prepared: false,
            lost: false,
            transactions: Default::default(),
            left: Budget::default(),
            broken: Broken::default(),
        }
    }
}
