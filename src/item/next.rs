//! Which item of a key comes next, in a queue whose ordering is `key`.
//!
//! Most items of a key wait behind its head, possibly for an hour, and there may be a hundred thousand of them. Claims
//! must not step over all of these each time. So a look passes over a waiting item, and the floor is raised above it.
//! **The transaction that ends a head finds the next item** by the index of keys. If a claim has passed that item, the
//! transaction gives the item a new place above the floor and makes it the head at once. Otherwise the next claim finds
//! the item in its place and makes it the head.
//!
//! **What makes it right.** A look passes an item only if the item is committed and waits behind a firm head. Firm
//! means committed, and not about to be ended. The transaction that ends that head does so after the look, then
//! searches for the next item, and so finds this one. If that transaction reads the floor before the look raises it,
//! the transaction lowers the floor, which bounds the raise, before any session can see that the head is gone; and
//! again at its commit, which wakes sessions. If the transaction fails, the head is back.
//!
//! * The search begins at the id of the head, or at the floor if that is lower. No look passes an item whose place is
//!   below its head's id. So dead entries of the key's former items are not searched. A moved item gets a new place and
//!   keeps its id.
//! * While a key has no head, no floor has passed the first of its items.
//! * An item that another transaction has locked stays where it is, and the floor is lowered to it.
//!
//! Only floors remember which items were passed. If a floor is forgotten, claims look at each item again. A database
//! with the objects of 0.2.0 has no index of keys, so in it no item is passed.

use super::heads::{At, Heads};
use super::moves::{self, Claimed};
use super::{ITEMS, LATER, Order, Queue, column, id, lane};
use crate::call::Call;
use crate::pg::table::{Flight, Key, Locked, Sight, Table};
use crate::pg::{catalog, clock};
use crate::shmem::floors::{Lane, NOWHERE};
use pgrx::pg_sys::{ItemPointerData, Oid};
use std::ffi::CStr;

const ITEMS_KEY: &CStr = c"_items_key";
const LATER_KEY: &CStr = c"_later_key";

/// Returns whether floors may pass items that wait for another item of their key.
pub fn may_pass(order: Order) -> bool {
    order == Order::Key && [ITEMS_KEY, LATER_KEY].into_iter().all(|index| catalog::relation(index) != Oid::INVALID)
}

/// The first item of a key in a table.
enum First {
    None,
    /// It is claimed, or another transaction has locked it.
    Taken(i64),
    Free(Waiting),
}

#[derive(Clone, Copy)]
struct Waiting {
    /// The item's place, or the time at which it became due.
    at: i64,
    id: i64,
    came: i64,
    tid: ItemPointerData,
}

impl First {
    fn at(&self) -> Option<i64> {
        match self {
            First::None => None,
            First::Taken(at) | First::Free(Waiting { at, .. }) => Some(*at),
        }
    }
}

/// A key whose head this transaction has just ended.
struct Ended<'a> {
    call: &'a Call,
    heads: &'a Heads<'a>,
    queue: &'a Queue,
    partition: i32,
    key: &'a str,
    /// The item that was the head. Its row may still be there.
    id: i64,
}

impl Ended<'_> {
    fn lane(&self, table: &'static CStr) -> Lane {
        lane(self.call, table, self.queue.number, self.partition)
    }

    fn floor(&self, table: &'static CStr) -> i64 {
        self.call.shared.floor_at(self.lane(table))
    }

    fn lower(&self, table: &'static CStr, to: i64) {
        self.call.seam().places(self.lane(table), to, false);
        self.queue.feeds(self.call, self.partition, 1);
    }

    fn range(&self, from: i64) -> [Key<'_>; 4] {
        [Key::Int(self.queue.number), Key::Int(self.partition), Key::Text(self.key), Key::From(from)]
    }

    /// Skips an item that a transaction is adding: that transaction wakes sessions at its end.
    fn first_ready(&self, items: &Table, from: i64) -> First {
        let first = items.scan(Sight::Dirty, &self.range(from), |row, flight| {
            let (place, id) = (row.required(column::PLACE), row.required(column::ID));
            match flight {
                _ if id == self.id => None,
                Flight::Inserting => None,
                Flight::None if row.required::<i64>(column::CLAIM) == 0 => {
                    Some(First::Free(Waiting { at: place, id, came: row.required(column::ADDED_AT), tid: row.tid() }))
                }
                _ => Some(First::Taken(place)),
            }
        });
        first.unwrap_or(First::None)
    }

    fn first_due(&self, later: &Table) -> First {
        let now = clock::timestamp();
        let first = later.scan(Sight::Dirty, &self.range(i64::MIN), |row, flight| {
            let (due, id) = (row.required(3), row.required(4));
            match flight {
                _ if due > now => Some(First::None),
                Flight::Inserting => None,
                Flight::None => Some(First::Free(Waiting { at: due, id, came: due, tid: row.tid() })),
                Flight::Changing => Some(First::Taken(due)),
            }
        });
        first.unwrap_or(First::None)
    }

    /// Moves an item to a new place and makes it the head of its key. Returns false if another transaction has locked
    /// the item.
    fn advance(&self, table: &Table, item: Waiting, from: &'static CStr) -> bool {
        if table.lock(item.tid, false) != Locked::Mine {
            return false;
        }
        let place = id::next(self.call);
        let at = |place| Claimed { queue: self.queue.number, partition: self.partition, place, fence: 0 };
        if from == LATER {
            moves::advance_due(self.call, item.at, item.id, at(place));
        } else {
            moves::advance(self.call, at(item.at), place);
        }
        self.heads.succeed(self.partition, self.key, item.id, At::Ready(place));
        self.lower(ITEMS, place);
        true
    }

    /// Makes the next item the head, if a claim has passed it. Otherwise lowers the floors so that claims find it.
    fn goes_on(&self) {
        if !may_pass(self.queue.order) {
            return self.lower(ITEMS, NOWHERE);
        }
        // Opened first: memory that statements keep must not lie among the memory of the tables.
        self.call.db();
        let (items, later) = (Table::open(ITEMS, ITEMS_KEY), Table::open(LATER, LATER_KEY));
        let (floor, floor_of_due) = (self.floor(ITEMS), self.floor(LATER));
        let (ready, due) = (self.first_ready(&items, floor.min(self.id)), self.first_due(&later));
        let (ready_passed, due_passed) =
            (ready.at().is_some_and(|at| at < floor), due.at().is_some_and(|at| at < floor_of_due));
        let advanced = (ready_passed || due_passed)
            && match (&ready, &due) {
                (First::Free(item), First::None) => self.advance(&items, *item, ITEMS),
                (First::None, First::Free(item)) => self.advance(&later, *item, LATER),
                (First::Free(item), First::Free(due)) if item.came < due.came => {
                    ready_passed && self.advance(&items, *item, ITEMS)
                }
                // The next search begins at the id of this new head, which must therefore be below the ready item's
                // place.
                (First::Free(item), First::Free(due)) => due.id < item.at && self.advance(&later, *due, LATER),
                _ => false,
            };
        if !advanced {
            for (table, first) in [(ITEMS, ready), (LATER, due)] {
                if let Some(at) = first.at() {
                    // Now, too: a look that has met the item behind the head passes it no more.
                    self.call.shared.lower(self.lane(table), at);
                    self.lower(table, at);
                }
            }
        }
    }
}

/// Ends the head of a key, so that the next item is free. The caller has locked the head's item. Returns false if
/// another transaction has locked the head's row.
pub fn end(call: &Call, heads: &Heads, queue: &Queue, partition: i32, key: &str, id: i64) -> bool {
    match heads.end(partition, key, id) {
        Locked::Busy => return false,
        Locked::Mine => Ended { call, heads, queue, partition, key, id }.goes_on(),
        // The item was not the head of its key. The head goes first.
        Locked::Changed => (),
    }
    true
}
