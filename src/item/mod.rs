//! Work items: queues whose claims live with the claimer's session, not with a guess of how long the work takes.
//!
//! **Where an item is.** In `_items` while it is ready or claimed, in the order of its place, a number that it gets
//! when it becomes ready; in `_later` until its time has come (added with run_at, or to be tried again); in
//! `_dead_items` once it is tried no more. It is done when it is nowhere. Its first place is its id, for ever.
//!
//! **Claiming** waits for no transaction. A claim looks at its lanes (a queue has one for each partition of its group,
//! or just one) with a dirty snapshot, in order: what is due from `_later` first, then what is ready. It takes what is
//! free by changing or deleting the row without waiting, and leaves what another transaction has in hand. A row changes
//! hands by one UPDATE that touches no index and does not change the row's length. So no item is given twice, and dead
//! rows are kept out of the way by the lanes' floors: see [`crate::shmem::floors`].
//!
//! **A claim** is a row: one for each call, with the fence that it drew and the session whose it is. An item names the
//! fence of its claim. A call that finishes items names the fence too, and finishes those that still have it. A thread
//! whose session has claimed the item again has an older fence, and is refused. A claim's row changes never. It goes
//! with the last of its items, or by retention where the last ones were finished by transactions that did not see each
//! other.
//!
//! * A finish takes S(session) in share mode, then looks at the session's slot, then deletes or changes the rows of the
//!   items, without waiting. From then on to its end no other transaction can take these items, even past the session's
//!   deadline; a close waits for it.
//! * A claim takes G(session) in share mode as a grant does (see [`crate::lease::grant`]), so that a session's last row
//!   is not taken away under it.
//! * The claims of a session that has ended are freed by [`free`]: by its close, by the worker's sweep, or by a claim
//!   that finds less than it asks for. A dead session finishes nothing, and what it was just finishing is in the hands
//!   of that transaction.
//! * Claims are not dumped. An item whose claim has no row is free. To ask for the row each time that a claim passes a
//!   claimed item would be dear. It is asked for only if the fence is older than the first claim of this start of
//!   shared memory, or than the last time that a sweep has expected copies of items ([`expect_copies`]).
//!
//! **Order**, where a queue has one: see [`heads`], [`claim`] for who comes first, and [`next`] for who comes after.
//!
//! **Queues** are declared. A drop and an addition that cross see each other as any declaration and its use do: an
//! addition reads the queue again after writing, and a drop looks for items after deleting, both with a dirty snapshot.
//!
//! Files, low to high: mod, id, moves, partitions, heads, next, add, dead, finish, queue, claim.

mod add;
mod claim;
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

/// Payloads that have no more bytes than this are not that long as text: a number takes 12 bytes or more.
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
    /// Of `_later`.
    pub const LATER_PAYLOAD: usize = 9;
}

/// Which items of a queue are given one at a time, in order: none, those of a key, or all of a partition.
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

    /// What a row of a table says.
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
    /// The group that it is bound to.
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

/// Expects items that an administrator may have put in, by COPY say or as a restore of data alone does: below the
/// floors; and under claims of another database, or of before, which have no rows here.
pub fn expect_copies(call: &Call) {
    fence::raise_again(call);
    call.database.first_claim.store(fence::next(call), Ordering::Release);
    // Last: until now some have passed them as claimed.
    call.shared.forget_floors(call.home.database);
}

/// Where items of a queue are, for one partition.
fn lane(call: &Call, table: &'static CStr, queue: i32, partition: i32) -> Lane {
    Lane { database: call.home.database, table: catalog::relation(table).to_u32(), queue, partition }
}

impl Queue {
    fn table() -> Table {
        Table::open(c"_queues", c"_queues_pkey")
    }

    /// The queue of a name: committed, or of this transaction.
    fn find(name: &str) -> Option<Queue> {
        Queue::table().scan(Sight::Latest, &[Key::Text(name)], |row, _| Some(read(row)))
    }

    pub fn of(name: &str) -> Result<Queue> {
        Queue::find(name).ok_or_else(|| Queue::unknown(name))
    }

    /// Says that there is no such queue.
    fn unknown(name: &str) -> ErrorReport {
        Error::Unknown { kind: "queue", name: name.to_owned() }.into()
    }

    pub fn numbered(number: i32) -> Option<Queue> {
        Table::open(c"_queues", c"_queues_number").scan(Sight::Latest, &[Key::Int(number)], |row, _| Some(read(row)))
    }

    /// Returns whether no transaction is about to drop it. While one alters it the new version is there, too.
    fn stands(&self) -> bool {
        let stays = |row: &Tuple, flight| match flight {
            Flight::None => true,
            Flight::Inserting => !row.is_marked(),
            Flight::Changing => false,
        };
        let stands = |row: &Tuple, flight| (stays(row, flight) && row.required::<i32>(2) == self.number).then_some(());
        Queue::table().scan(Sight::Dirty, &[Key::Text(&self.name)], stands).is_some()
    }

    /// Notes that items have become free in a partition, if this commits.
    fn feeds(&self, call: &Call, partition: i32, count: usize) {
        debug_assert!(count > 0, "waiters are not woken for nothing");
        let partition = self.group.is_some().then_some(partition);
        call.seam().items(self.number, &self.name, Food::of(count, partition));
    }

    /// How long after a failed attempt the next one is.
    fn backoff_ms(&self, attempt: i32) -> i64 {
        let doublings = attempt.saturating_sub(1).clamp(0, 40);
        (i64::from(self.backoff_ms) << doublings).min(limits::MAX_ITEM_BACKOFF_MS.max(self.backoff_ms.into()))
    }
}

/// Returns the partition of an item, one of so many.
fn partition(key: Option<&str>, id: i64, partitions: i32) -> i32 {
    debug_assert!(partitions > 0, "a group has partitions");
    let of = |key: &str| partition_of(key, partitions).unwrap_or(0);
    match key {
        _ if partitions == 1 => 0,
        Some(key) => of(key),
        None => of(&id.to_string()),
    }
}

/// The element of an array of a claim, which has as many as there are places; without the array, `all` have the same.
fn nth<T: Copy>(column: &str, array: Option<&[T]>, index: usize, all: T) -> T {
    let Some(array) = array else { return all };
    let word = || format!("{} elements", array.len());
    required::known("_claims", column, &word(), array.get(index).copied(), all)
}

/// One call of item_claim that got something.
#[derive(Clone, Debug)]
pub struct Claim {
    pub fence: i64,
    pub session: Uuid,
    pub queue: i32,
    order: Order,
    /// Partition, place and id of each item.
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

    /// Takes the row away, unless another transaction is doing so. Returns whether it is gone.
    fn forget(fence: i64) -> bool {
        let table = Claim::table();
        let found = table.scan(Sight::Latest, &[Key::Long(fence)], |_, _| Some(())).is_some();
        !found || table.try_delete() == Locked::Mine
    }
}
