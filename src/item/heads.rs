//! Heads: which item of a key goes first, in a queue whose ordering is `key` or `fifo`.
//!
//! The items of a key are given one at a time. So the first claim of an item makes this item the head of its key, by a
//! row that names the item. The row stays until the item is done or dead, or its queue is dropped. An unclaim, a
//! failure, the wait for another try and the end of the session do not delete it. The transaction that finishes the
//! item deletes the row. As long as the row exists, no session gets another item of the key. In a `fifo` queue all
//! items of a partition have one key.
//!
//! * The row also says where its item is. So a claim finds the item behind any number of waiting ones, and also in
//!   `_later`, before another try.
//! * A call that wants to make a head first looks for one with a dirty snapshot: a head that is being made, or about to
//!   go, counts. Under the lane's `Stripe`, the call looks once more and writes its own head; it releases the stripe at
//!   once. Two such calls see each other, and neither waits for a transaction.
//! * Rows are only made and deleted, never changed, so a dirty scan misses none. When a transaction moves an item,
//!   which it has locked, it also replaces the row. Until that transaction ends, both rows are in flight.
//!
//! Each finished item of a key leaves a dead head row, and an old snapshot keeps these rows in the index. So each key
//! has a lane with a floor (see [`crate::shmem::floors`]), and a hash of the key names the lane. A new row of a lane
//! has the greatest number, as that is drawn under the stripe. The floor is also raised under the stripe, and only over
//! rows that are gone for good. It stops at rows in flight, and at rows that this very transaction has deleted: these
//! rows come back if the transaction fails. So the floor is never lowered.

use super::{Order, id, lane};
use crate::call::Call;
use crate::keys::fnv1a;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::shmem::floors::Lane;
use pgrx::pg_sys::{INT4OID, INT8OID, TEXTOID};
use std::ffi::CStr;

const HEADS: &CStr = c"_item_heads";

static PUT: Statement = Statement::tidies(
    include_str!("../../sql/query/item/put_head.sql"),
    &[INT4OID, INT4OID, INT8OID, INT4OID, INT8OID, INT8OID, INT8OID, TEXTOID],
);
pub static DROP: Statement = Statement::writes(include_str!("../../sql/query/item/drop_heads.sql"), &[INT4OID]);

/// Columns of `_item_heads`.
mod column {
    pub const SINCE: usize = 3;
    pub const PARTITION: usize = 4;
    pub const ID: usize = 5;
    pub const PLACE: usize = 6;
    pub const DUE: usize = 7;
    pub const KEY: usize = 8;
}

/// Where an item is.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// In `_items`, at this place.
    Ready(i64),
    /// In `_later`, until this time.
    Later(i64),
}

#[derive(Clone, Copy, Debug)]
pub enum Head {
    None,
    /// Another transaction is making it, or about to end it.
    InFlight,
    /// `firm`: another transaction has made it, and has committed.
    Is {
        id: i64,
        at: At,
        firm: bool,
    },
}

/// Returns the key that orders an item, if there is one.
pub fn key(order: Order, key: Option<Text>) -> Option<String> {
    match order {
        Order::None => None,
        Order::Fifo => Some(String::new()),
        Order::Key => key.map(|key| key.0),
    }
}

pub struct Heads<'a> {
    call: &'a Call,
    queue: i32,
    table: Table,
}

impl Heads<'_> {
    pub fn of(call: &Call, queue: i32) -> Heads<'_> {
        Heads { call, queue, table: Table::open(HEADS, c"_item_heads_pkey") }
    }

    fn lane(&self, partition: i32, key: &str) -> Lane {
        let hash = fnv1a(key);
        // The number of the lane is negative, so that it is not the number of a partition.
        let number = ((hash >> 32) as i32 ^ hash as i32 ^ partition) | i32::MIN;
        lane(self.call, HEADS, self.queue, number)
    }

    /// Returns the head of a key, looking from a number of its lane on, and the first number that is not gone for good.
    fn look(&self, lane: Lane, from: i64, partition: i32, key: &str) -> (Head, i64) {
        let (mut head, mut stop) = (Head::None, i64::MAX);
        let range = [Key::Int(self.queue), Key::Int(lane.partition), Key::From(from)];
        self.table.scan(Sight::Dirty, &range, |row, flight| {
            stop = stop.min(row.required(column::SINCE));
            if is_of(row, partition, key) {
                head = match flight {
                    Flight::None => read(row),
                    _ => Head::InFlight,
                };
            }
            matches!(head, Head::InFlight).then_some(())
        });
        (head, stop)
    }

    pub fn find(&self, partition: i32, key: &str) -> Head {
        let lane = self.lane(partition, key);
        self.look(lane, self.call.shared.floor_at(lane), partition, key).0
    }

    /// Makes an item the head of a key that has none. Returns false if the key has one after all.
    pub fn put(&self, partition: i32, key: &str, id: i64, at: At) -> bool {
        let lane = self.lane(partition, key);
        let stripe = Guard::Stripe((lane.partition.cast_unsigned() ^ self.queue.cast_unsigned()) as u8 as u16);
        stripe.lock(Mode::Exclusive);
        let start = self.call.shared.floor(lane);
        let (head, stop) = self.look(lane, start.at, partition, key);
        let none = matches!(head, Head::None);
        if none {
            let since = self.insert(lane, partition, key, id, at);
            let mine = self.call.seam().first_ended_head();
            self.call.shared.raise(lane, start, stop.min(since).min(mine));
        }
        stripe.unlock(Mode::Exclusive);
        none
    }

    /// Makes an item the head of a key whose head this transaction has just ended. So no other transaction makes one.
    pub fn succeed(&self, partition: i32, key: &str, id: i64, at: At) {
        self.insert(self.lane(partition, key), partition, key, id, at);
    }

    fn insert(&self, lane: Lane, partition: i32, key: &str, id: i64, at: At) -> i64 {
        let since = id::next(self.call);
        let (place, due) = match at {
            At::Ready(place) => (Value::Long(place), Value::Null),
            At::Later(due) => (Value::Null, Value::Long(due)),
        };
        let values = vec![
            Value::Int(self.queue),
            Value::Int(lane.partition),
            Value::Long(since),
            Value::Int(partition),
            Value::Long(id),
            place,
            due,
            Value::Text(key),
        ];
        self.call.db().execute(&PUT, values);
        since
    }

    /// Deletes the head of a key. The caller has locked its item. `Changed`: the item was not the head.
    pub fn end(&self, partition: i32, key: &str, id: i64) -> Locked {
        let lane = self.lane(partition, key);
        let range = [Key::Int(self.queue), Key::Int(lane.partition), Key::From(self.call.shared.floor_at(lane))];
        let found = self.table.scan(Sight::Latest, &range, |row, _| {
            let is_it = is_of(row, partition, key) && row.required::<i64>(column::ID) == id;
            is_it.then(|| row.required(column::SINCE))
        });
        let Some(since) = found else { return Locked::Changed };
        let ended = self.table.try_delete();
        if ended == Locked::Mine {
            self.call.seam().ended_head(since);
        }
        ended
    }

    /// Writes to the head where its item goes. The caller has locked the item. Returns false if another
    /// transaction has locked the head's row.
    pub fn moves(&self, partition: i32, key: &str, id: i64, to: At) -> bool {
        match self.end(partition, key, id) {
            Locked::Mine => {
                self.succeed(partition, key, id, to);
                true
            }
            Locked::Busy => false,
            Locked::Changed => true,
        }
    }
}

fn is_of(row: &Tuple, partition: i32, key: &str) -> bool {
    row.required::<i32>(column::PARTITION) == partition && row.required::<Text>(column::KEY).0 == key
}

fn read(row: &Tuple) -> Head {
    let at = match row.get(column::PLACE) {
        Some(place) => At::Ready(place),
        None => At::Later(row.required(column::DUE)),
    };
    Head::Is { id: row.required(column::ID), at, firm: !row.is_mine() }
}
