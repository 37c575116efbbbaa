//! The state: rows, shared memory, transactions.

use crate::set::Set;

pub const SESSIONS: usize = 3;
pub const RESOURCES: usize = 2;
/// The number of client transactions that may be open or prepared at one time.
pub const CLIENTS: usize = 3;
/// The number of the worker's transaction; client transactions have lower ones.
pub const WORKER: usize = CLIENTS;

/// The row of a lease. A released row has no holder, and keeps its fence.
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

/// A lease: its committed row, the transaction that has locked it, and that transaction's new row.
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
    /// `t0 + ttl` has passed, the deadline of an old row.
    pub past: bool,
    /// The transaction that opened the session, until it ends.
    pub opened_by: Option<u8>,
    /// A process has found no slot and read the row, but has not made the slot yet.
    pub reading: bool,
    /// A process has read a living word and not written it yet; only without the compare-and-swap.
    pub beating: bool,
    /// The session has been dead in this start of shared memory.
    pub dead: bool,
    /// A committed transaction has taken something from the dead session, so a row tells of its death.
    pub taken: bool,
    pub places: [Place; RESOURCES],
    /// The leases that the session believes it holds: it was told so, for a time that it may trust.
    pub trusts: Set,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    #[default]
    Idle,
    Open,
    /// Has looked at a lease and seen that it may be granted.
    Wants {
        resource: u8,
        seen: Option<Row>,
        /// Set only if the fence is drawn before the row is locked.
        fence: u8,
    },
    /// Holds F and may have to wait for the row.
    Releases {
        resource: u8,
    },
    /// Holds S and may have to wait for the row.
    Closes,
    /// Has found out which lease has a fence, and locked nothing yet.
    Checks {
        resource: u8,
        fence: u8,
    },
    /// The worker has taken the dirty resources and the dead sessions.
    Passes,
    /// Has frozen the sessions that it ends, and will commit or be prepared.
    Frozen,
    /// The end is visible, and no process has been told.
    Ended {
        committed: bool,
    },
    /// The transaction has told everything, and still holds its locks.
    Told,
    Prepared,
}

/// A transaction: its notes, and the locks that row versions do not show.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Transaction {
    pub phase: Phase,
    /// The session that the transaction is for.
    pub me: u8,
    pub verbs: u8,
    /// Resources noted, to be posted at the end.
    pub post: Set,
    pub opened: Set,
    pub ended: Set,
    /// Sessions of `ended` whose row the transaction deletes.
    pub gone: Set,
    /// Fences that the transaction has checked, zero for none. It holds their F in share mode.
    pub fenced: [u8; RESOURCES],
    /// Fences whose F the transaction holds exclusively.
    pub excludes: [u8; RESOURCES],
    /// Sessions whose G the transaction holds: in `grants` in share mode, in `buries` exclusively.
    pub grants: Set,
    pub buries: Set,
    /// Whether the transaction holds S of `me` in share mode. `closes`: the sessions whose S it holds exclusively.
    pub fences: bool,
    pub closes: Set,
    /// Dead sessions from which the transaction has taken leases; it has written a row of each death. Once it is
    /// prepared, it keeps the sessions of `keeps_dead` dead by a lock of its own.
    pub took_from: Set,
    pub keeps_dead: Set,
    /// The launcher watches for the transaction's end, once it is prepared.
    pub watched: bool,
    /// Only for the worker: resources taken out of the ring, resources still to judge, and dead sessions.
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
    /// The dirty ring. It also has the resources to try again later, since any time may be late enough.
    pub ring: Set,
    pub rescan: bool,
    pub boot: bool,
    /// A prepared transaction that is watched has ended.
    pub ended_prepared: bool,
    /// A crash may have lost drawn fences, and the fences have not been raised above those yet.
    pub lost: bool,
    pub transactions: [Transaction; CLIENTS + 1],
    pub left: Budget,
    pub broken: Broken,
}

/// How often these things may still happen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Budget {
    pub calls: u8,
    pub prepares: u8,
    pub crashes: u8,
}

/// In a budget: without a limit.
pub const ANY: u8 = u8::MAX;

/// Faults that show in the course of a step but not in a state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Broken {
    pub fence_fell: bool,
    pub revived: bool,
    pub waited: bool,
    pub jumped: bool,
    pub extended: bool,
}

impl Fact {
    /// Returns whether a transaction sees the row, after its own changes.
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

    /// Returns whether another transaction has locked the row.
    pub fn is_taken_from(self, x: usize) -> bool {
        matches!(self, Fact::Inserting(by) | Fact::Locked(by) | Fact::Deleting(by) if usize::from(by) != x)
    }

    /// Deletes the row, which the transaction has locked.
    pub fn delete(&mut self, x: usize) {
        *self = if matches!(self, Fact::Inserting(_) | Fact::Absent) { Fact::Absent } else { Fact::Deleting(x as u8) };
    }

    /// Settles the row at the end of a transaction.
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
    /// Returns the row as a transaction sees it.
    pub fn seen_by(&self, x: usize) -> Option<Row> {
        if self.is_mine(x) { self.new.or(self.row) } else { self.row }
    }

    pub fn is_mine(&self, x: usize) -> bool {
        self.by == Some(x as u8)
    }

    pub fn is_taken_from(&self, x: usize) -> bool {
        self.by.is_some() && !self.is_mine(x)
    }

    /// Returns whether another transaction is making or changing the row, not only locking it.
    pub fn is_in_flight(&self, x: usize) -> bool {
        self.is_taken_from(x) && self.new.is_some()
    }

    pub fn write(&mut self, x: usize, row: Row) {
        (self.by, self.new) = (Some(x as u8), Some(row));
    }
}

impl Transaction {
    /// Returns whether the transaction may still commit or abort: others see it in progress.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Ended { .. } | Phase::Told)
    }

    /// Returns whether a client's transaction is for a session.
    pub fn is_of(&self, s: usize) -> bool {
        self.phase != Phase::Idle && usize::from(self.me) == s
    }

    pub fn is_prepared(&self) -> bool {
        self.phase == Phase::Prepared
    }

    /// Returns whether the transaction must tell of its end. The worker has judged everything that it commits.
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
    /// Returns the state in which each client has a session, and no session holds a lease.
    pub fn opened() -> State {
        let session = Session { row: Fact::Stands, word: Word::Alive, ..Session::default() };
        State { sessions: [session; SESSIONS], ..State::empty() }
    }

    /// Returns the state in which no client has a session.
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
