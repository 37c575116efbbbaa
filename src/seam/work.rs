//! Notes about the worker's work: what it has taken out of shared memory to do, and what it must do one day.

use super::effect::{Effect, Memory};
use crate::pg::clock;
use crate::shmem::databases::Kept;

/// What this transaction has taken out of shared memory, and does. If it fails, it is put back.
pub enum Taken {
    /// A resource that it judges.
    Resource { name: String, changed: Option<i32> },
    /// Flags of the database.
    Flags(u32),
    /// That there are rows which are kept.
    Retention,
    /// That listeners must be told of items of a queue.
    Listeners { queue: String },
}

impl Effect for Taken {
    fn at_abort(&self, Memory { shared, database, .. }: &Memory) -> bool {
        match self {
            Taken::Resource { name, changed } => shared.post(database, name, *changed),
            Taken::Flags(flags) => database.flag(*flags),
            Taken::Retention => database.may_keep(),
            Taken::Listeners { queue } => shared.post_items(database, queue),
        }
        true
    }
}

/// A row has come to its end, and is kept for a while from now on.
pub struct Retained {
    pub kind: Kept,
}

impl Effect for Retained {
    /// Claims alone: rows of other kinds are found when the database is looked through after the end.
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
