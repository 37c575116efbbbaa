//! Work items: queues whose claims last as long as the claimer's session lives, not for a guess of how long the work
//! takes.
//!
//! **Where an item is.** `_items` has it while it is ready or claimed, ordered by place. The place is a number that the
//! item gets when it becomes ready. `_later` has it until its time has come (it was added with `run_at`, or must be
//! tried again). `_dead_items` has it once it is tried no more. A done item has no row. The first place of an item is
//! its id, for ever.
//!
//! **Claiming** waits for no transaction. A claim looks at its lanes with a dirty snapshot, in order: first at due
//! items of `_later`, then at ready ones. A queue has a lane for each partition of its group, or just one. A claim
//! takes free items by changing or deleting their rows without waiting. It leaves items that another transaction has
//! locked. One UPDATE, which touches no index and keeps the row's length, gives a row another owner. So no item is
//! given twice. The floors of lanes keep dead rows out of the way: see [`crate::shmem::floors`].
//!
//! **A claim** is a row, one for each call that gets items, with the call's fence and session. An item names the fence
//! of its claim. A call that finishes items also names a fence, and finishes only items that still have this fence. If
//! the session has claimed an item again, a thread with the older fence is refused. The row of a claim never changes.
//! It is deleted with the last of its items. If transactions that did not see each other finished the last items,
//! retention deletes it.
//!
//! * A finish takes S(session) in share mode, looks at the session's slot, and then deletes or changes the rows of the
//!   items without waiting. Until that transaction ends, no other transaction can take these items, even past the
//!   session's deadline. A close waits for its end.
//! * A claim takes G(session) in share mode as a grant does (see [`crate::lease::grant`]). So no transaction deletes
//!   the session's last row during the claim.
//! * [`free`] frees the claims of a session that has ended. It is called by a close, by the worker's sweep, and by a
//!   claim that finds less than it asks for. A dead session finishes nothing more; items that it was just finishing
//!   depend on the outcome of the finishing transaction.
//! * Claims are not dumped, and an item whose claim has no row is free. A look-up of that row for each claimed item
//!   would cost too much. So a claim looks the row up only for fences below a bound. The bound is the first claim of
//!   this start of shared memory, or of the last time that a sweep expected copies of items ([`expect_copies`]).
//!
//! **Order**, where a queue has one: [`heads`] and [`claim`] say which item is first, [`next`] which one follows.
//!
//! **Queues** are declared. A drop and an addition that cross see each other, as a declaration and its use do. An
//! addition reads the queue again after writing; a drop looks for items after deleting. Both use a dirty snapshot.
//!
//! Files, low to high: mod, id, moves, partitions, heads, next, add, counts, dead, finish, queue, claim.

mod add;
mod claim;
pub mod counts;
mod dead;
mod finish;
mod heads;
mod id;
mod moves;
mod next;
mod partitions;
mod queue;

pub use claim::announce_due;
pub use dead::{OLDEST, RETIRE, free};
pub use finish::{OLDEST_CLAIM, RETIRE_CLAIMS};
pub use queue::Queues;

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::Call;
use crate::keys::partition_of;
use crate::lease::fence;
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{catalog, required};
use crate::shmem::floors::Lane;
use crate::shmem::hunger::Food;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use pgrx::pg_sys::panic::ErrorReport;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// A payload of at most this many bytes is also short enough as text. The densest content is numbers, which take 12
/// bytes or more each.
const SURELY_SHORT: usize = limits::MAX_PAYLOAD_TEXT / 147_456 * 12;

const ITEMS: &CStr = c"_items";
const LATER: &CStr = c"_later";

/// Columns of `_items`.
mod column {
    pub const PLACE: usize = 3;
    pub const ID: usize = 4;
    pub const CLAIM: usize = 5;
    pub const ATTEMPT: usize = 6;
    pub const ADDED_AT: usize = 7;
    pub const KEY: usize = 8;
    pub const PAYLOAD: usize = 10;
    /// A column of `_later`.
    pub const LATER_PAYLOAD: usize = 9;
}

/// Which items of a queue are given one at a time, in order: none, the items of a key, or all items of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    None,
    Key,
    Fifo,
}

impl Order {
    fn named(name: &str) -> Option<Order> {
        [Order::None, Order::Key, Order::Fifo].into_iter().find(|order| order.name() == name)
    }

    /// Reads the ordering in a row of a table.
    fn read(table: &str, word: &str) -> Order {
        required::known(table, "ordering", word, Order::named(word), Order::None)
    }

    fn name(self) -> &'static str {
        match self {
            Order::None => "none",
            Order::Key => "key",
            Order::Fifo => "fifo",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub name: String,
    pub number: i32,
    pub max_attempts: i32,
    pub backoff_ms: i32,
    order: Order,
    owner: String,
    /// The group to which the queue is bound.
    pub group: Option<String>,
    tid: ItemPointerData,
}

fn read(row: &Tuple) -> Queue {
    Queue {
        name: row.required::<Text>(1).0,
        number: row.required(2),
        max_attempts: row.required(3),
        backoff_ms: row.required(4),
        order: Order::read("_queues", &row.required::<Text>(5)),
        owner: row.required::<Text>(6).0,
        group: row.get::<Text>(7).map(|group| group.0),
        tid: row.tid(),
    }
}

/// Expects items that an administrator may have put in, by COPY or by a restore of data alone. They may be below the
/// floors. They may also name claims that have no rows here, made in another database or at an earlier time.
pub fn expect_copies(call: &Call) {
    fence::raise_again(call);
    call.database.first_claim.store(fence::next(call), Ordering::Release);
    // The floors come last: until now claims may have passed such items as claimed.
    call.shared.forget_floors(call.home.database);
}

/// Returns the lane of a queue's items in one table and partition.
fn lane(call: &Call, table: &'static CStr, queue: i32, partition: i32) -> Lane {
    Lane { database: call.home.database, table: catalog::relation(table).to_u32(), queue, partition }
}

impl Queue {
    fn table() -> Table {
        Table::open(c"_queues", c"_queues_pkey")
    }

    /// Returns the queue of a name: a committed one, or one of this transaction.
    fn find(name: &str) -> Option<Queue> {
        Queue::table().scan(Sight::Latest, &[Key::Text(name)], |row, _| Some(read(row)))
    }

    pub fn of(name: &str) -> Result<Queue> {
        Queue::find(name).ok_or_else(|| Queue::unknown(name))
    }

    /// Returns the error for a queue that does not exist.
    fn unknown(name: &str) -> ErrorReport {
        Error::Unknown { kind: "queue", name: name.to_owned() }.into()
    }

    pub fn numbered(number: i32) -> Option<Queue> {
        Table::open(c"_queues", c"_queues_number").scan(Sight::Latest, &[Key::Int(number)], |row, _| Some(read(row)))
    }

    /// Returns whether the queue exists and no transaction is dropping it. While a transaction alters the queue, the
    /// new version of the row is found.
    fn stands(&self) -> bool {
        let stays = |row: &Tuple, flight| match flight {
            Flight::None => true,
            Flight::Inserting => !row.is_marked(),
            Flight::Changing => false,
        };
        let stands = |row: &Tuple, flight| (stays(row, flight) && row.required::<i32>(2) == self.number).then_some(());
        Queue::table().scan(Sight::Dirty, &[Key::Text(&self.name)], stands).is_some()
    }

    /// Notes that items have become free in a partition, if this transaction commits.
    fn feeds(&self, call: &Call, partition: i32, count: usize) {
        debug_assert!(count > 0, "waiters are not woken for nothing");
        let partition = self.group.is_some().then_some(partition);
        call.seam().items(self.number, &self.name, Food::of(count, partition));
    }

    /// Returns the milliseconds between a failed attempt and the next one.
    fn backoff_ms(&self, attempt: i32) -> i64 {
        let doublings = attempt.saturating_sub(1).clamp(0, 40);
        (i64::from(self.backoff_ms) << doublings).min(limits::MAX_ITEM_BACKOFF_MS.max(self.backoff_ms.into()))
    }
}

/// Returns the partition of an item, below `partitions`.
fn partition(key: Option<&str>, id: i64, partitions: i32) -> i32 {
    let none = || required::known("_declarations", "slots", &partitions.to_string(), None, 0);
    let of = |key: &str| partition_of(key, partitions).unwrap_or_else(none);
    match key {
        _ if partitions == 1 => 0,
        Some(key) => of(key),
        None => of(&id.to_string()),
    }
}

/// Returns an element of an array of a claim, which must have as many elements as the claim has places. Without the
/// array, every place has the value `all`.
fn nth<T: Copy>(column: &str, array: Option<&[T]>, index: usize, all: T) -> T {
    let Some(array) = array else { return all };
    let word = || format!("{} elements", array.len());
    required::known("_claims", column, &word(), array.get(index).copied(), all)
}

/// A call of item_claim that got items.
#[derive(Clone, Debug)]
pub struct Claim {
    pub fence: i64,
    pub session: Uuid,
    pub queue: i32,
    order: Order,
    /// The partition, place and id of each item.
    pub items: Vec<(i32, i64, i64)>,
}

impl Claim {
    fn table() -> Table {
        Table::open(c"_claims", c"_claims_pkey")
    }

    fn read(row: &Tuple) -> Claim {
        let places: Vec<i64> = row.required(5);
        let (partitions, ids): (Option<Vec<i32>>, Option<Vec<i64>>) = (row.get(6), row.get(7));
        let item = |(index, place): (usize, &i64)| {
            let partition = nth("partitions", partitions.as_deref(), index, 0);
            (partition, *place, nth("ids", ids.as_deref(), index, *place))
        };
        let items = places.iter().enumerate().map(item).collect();
        let order = row.get::<Text>(8).map_or(Order::None, |word| Order::read("_claims", &word));
        Claim { fence: row.required(1), session: row.required(2), queue: row.required(3), order, items }
    }

    fn of(fence: i64) -> Option<Claim> {
        Claim::table().scan(Sight::Latest, &[Key::Long(fence)], |row, _| Some(Claim::read(row)))
    }

    fn exists(fence: i64) -> bool {
        Claim::table().scan(Sight::Latest, &[Key::Long(fence)], |_, _| Some(())).is_some()
    }

    /// Deletes the row of a claim, unless another transaction has locked or deleted it. Returns whether the row is
    /// gone.
    fn forget(fence: i64) -> bool {
        let table = Claim::table();
        let found = table.scan(Sight::Latest, &[Key::Long(fence)], |_, _| Some(())).is_some();
        !found || table.try_delete() == Locked::Mine
    }
}
