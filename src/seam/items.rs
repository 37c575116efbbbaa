//! Notes about work items: the floors of lanes, and the waking of hungry sessions.

use super::effect::{Effect, Memory};
use crate::shmem::floors::Lane;
use crate::shmem::hunger::Food;
use std::sync::atomic::Ordering;

/// Work items at the place `from` of a lane, or beyond, have been claimed, or have become free.
pub struct Places {
    pub lane: Lane,
    pub from: i64,
    pub claimed: bool,
}

impl Places {
    fn lower(&self, memory: &Memory) {
        memory.shared.lower(self.lane, self.from);
    }
}

impl Effect for Places {
    fn may_feed(&self) -> bool {
        true
    }

    fn is_first(&self) -> bool {
        true
    }

    fn at_prepare(&self, memory: &Memory) {
        self.lower(memory);
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        if !self.claimed {
            self.lower(memory);
        }
        false
    }

    /// Gives back the claimed items: wakes the sessions that found them claimed.
    fn at_abort(&self, memory: &Memory) -> bool {
        if self.claimed {
            self.lower(memory);
            memory.shared.feed(memory.database, self.lane.queue, Food::ALL);
        }
        false
    }

    fn absorb(&mut self, other: &Self) -> bool {
        let same = (self.lane, self.claimed) == (other.lane, other.claimed);
        if same {
            self.from = self.from.min(other.from);
        }
        same
    }
}

/// Work items in more lanes than are noted have been claimed, or have become free.
pub struct AllPlaces;

impl AllPlaces {
    fn forget_floors(memory: &Memory) {
        memory.shared.forget_floors(memory.database.oid.load(Ordering::Relaxed));
    }

    fn feed_all(memory: &Memory) -> bool {
        AllPlaces::forget_floors(memory);
        memory.shared.feed_all(memory.database);
        false
    }
}

impl Effect for AllPlaces {
    fn may_feed(&self) -> bool {
        true
    }

    fn is_first(&self) -> bool {
        true
    }

    fn at_prepare(&self, memory: &Memory) {
        AllPlaces::forget_floors(memory);
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        AllPlaces::feed_all(memory)
    }

    fn at_abort(&self, memory: &Memory) -> bool {
        AllPlaces::feed_all(memory)
    }

    fn absorb(&mut self, _: &Self) -> bool {
        true
    }
}

/// Work items have become free in a queue.
pub struct Items {
    pub queue: i32,
    pub name: String,
    pub food: Food,
}

impl Effect for Items {
    fn may_feed(&self) -> bool {
        true
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        let any_hungry = memory.shared.feed(memory.database, self.queue, self.food);
        if any_hungry {
            memory.shared.post_items(memory.database, &self.name);
        }
        any_hungry
    }

    fn absorb(&mut self, other: &Self) -> bool {
        let same = self.queue == other.queue;
        if same {
            self.food.add(other.food);
        }
        same
    }
}

/// Work items of a queue become due, the first at `at`, in microseconds since 2000.
pub struct Due {
    pub queue: i32,
    pub at: i64,
}

impl Effect for Due {
    fn may_feed(&self) -> bool {
        true
    }

    fn at_commit(&self, memory: &Memory) -> bool {
        memory.shared.feed_at(memory.database, self.queue, self.at);
        false
    }

    fn absorb(&mut self, other: &Self) -> bool {
        let same = self.queue == other.queue;
        if same {
            self.at = self.at.min(other.at);
        }
        same
    }
}

/// Heads of keys have been ended; `first` is the lowest of their numbers. The note is for this transaction alone.
pub struct EndedHeads {
    pub first: i64,
}

impl Effect for EndedHeads {
    fn absorb(&mut self, other: &Self) -> bool {
        self.first = self.first.min(other.first);
        true
    }
}
