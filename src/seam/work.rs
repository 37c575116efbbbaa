//! Notes about the worker's work: what it has taken out of shared memory to do, and what it must do later.

use super::effect::{Effect, Memory};
use crate::pg::clock;
use crate::shmem::databases::Kept;

/// Work that this transaction has taken out of shared memory. If the transaction fails, the work is put back.
pub enum Taken {
    /// A resource that the transaction judges.
    Resource { name: String, changed: Option<i32>, since: u64 },
    /// Flags of the database.
    Flags(u32),
    /// What shared memory knew of the rows that are kept.
    Retention,
    /// The duty to tell listeners of items of a queue.
    Listeners { queue: String },
}

impl Effect for Taken {
    fn at_abort(&self, Memory { shared, database, .. }: &Memory) -> bool {
        match self {
            Taken::Resource { name, changed, since } => shared.post_again(database, name, *changed, *since),
            Taken::Flags(flags) => database.flag(*flags),
            Taken::Retention => database.may_keep(),
            Taken::Listeners { queue } => shared.post_items(database, queue),
        }
        true
    }
}

/// A row has ended, and is kept for a while from now on.
pub struct Retained {
    pub kind: Kept,
}

impl Effect for Retained {
    /// Only claims are noted here. Rows of other kinds are found when the database is rescanned after the end of the
    /// prepared transaction.
    fn at_prepare(&self, memory: &Memory) {
        if self.kind == Kept::Claims {
            memory.database.keep(Kept::Claims, clock::now());
        }
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        memory.database.keep(self.kind, clock::now())
    }

    fn absorb(&mut self, other: &Self) -> bool {
        self.kind == other.kind
    }
}
