//! What the view `queues` shows of the items of a queue. A queue may have millions of them, so each look is bounded.

use super::{ITEMS, LATER, Order, Queue, column};
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::spi::Db;
use crate::pg::statistics::{self, Count, Which};
use crate::pg::table::{Key, Sight, Stand, Table};
use crate::pg::text::Text;
use crate::pg::{catalog, clock, row};
use crate::shmem::floors::Lane;
use crate::shmem::shared;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::ffi::CStr;

row::composite! {
    /// How many items a queue has in each table, when they were counted, and since when one is ready.
    Counts = "eskit_lease._item_counts" {
        items: i64,
        later: i64,
        dead: i64,
        counted_at: Option<TimestampWithTimeZone>,
        ready_since: Option<TimestampWithTimeZone>,
    }
}

/// Returns whether there is no second queue, so that all rows of a table are items of this one.
fn is_alone() -> bool {
    let mut queues = 0;
    let table = Queue::table();
    let second = table.scan(Sight::Caller, &[], |_, _| {
        queues += 1;
        (queues > 1).then_some(())
    });
    second.is_none()
}

fn count(name: &'static CStr, table: &Table, queue: i32) -> Count {
    match statistics::few(table, &[Key::Int(queue)]) {
        Ok(rows) => Count { rows, at: Some(clock::timestamp()) },
        Err(least) => {
            let which = Which::With("queue", &queue.to_string());
            statistics::many(&Db::open(catalog::home()), name, &which, is_alone(), least)
        }
    }
}

/// Returns when the first ready item of a partition was added: the earliest of these times. All walks together pass up
/// to [`limits::MAX_PASSED`] rows, and so may miss an item.
fn ready_since(items: &Table, queue: i32, order: Order, partitions: i32) -> Option<i64> {
    let shared = shared().ok();
    let (home, table) = (catalog::home(), catalog::relation(ITEMS).to_u32());
    let (mut first, mut left) = (None, limits::MAX_PASSED);
    for partition in 0..partitions {
        pgrx::check_for_interrupts!();
        // Below the floor there are claimed and finished items, and in a queue ordered by keys also items that wait for
        // another one. So in such a queue the walk begins at the first item. If it reaches its bound, another walk
        // begins at the floor.
        let lane = Lane { database: home.database, table, queue, partition };
        let floor = shared.map_or(i64::MIN, |shared| shared.floor_at(lane));
        let from: &[i64] = if order == Order::Key { &[i64::MIN, floor] } else { &[floor] };
        for (remaining, from) in (1..).zip(from.iter().rev()).collect::<Vec<_>>().into_iter().rev() {
            let share = left / i64::from(partitions - partition) / remaining;
            let key = [Key::Int(queue), Key::Int(partition), Key::From(*from)];
            let (added, passed) = first_ready(items, &key, share);
            left -= passed;
            first = added.into_iter().chain(first).min();
            if passed < share {
                break;
            }
        }
    }
    first
}

/// Returns when the first ready item from a key on was added, and how many rows and versions the walk has passed. It
/// passes `most` at most.
fn first_ready(items: &Table, key: &[Key], most: i64) -> (Option<i64>, i64) {
    let mut walk = items.walk_versions(Sight::Caller, key);
    for passed in 0..most {
        match walk.one_version() {
            Stand::Row(_) if items.row().required::<i64>(column::CLAIM) == 0 => {
                return (Some(items.row().required(column::ADDED_AT)), passed);
            }
            Stand::Row(_) | Stand::Stale => (),
            Stand::End => return (None, passed),
        }
    }
    (None, most)
}

/// Returns a time that a row has, in microseconds since 2000.
fn time(at: Option<i64>) -> Option<TimestampWithTimeZone> {
    at.and_then(|at| at.try_into().ok())
}

#[pg_extern(schema = "eskit_lease", strict)]
fn _count_items(queue: i32, ordering: Text, partitions: i32) -> Result<Counts> {
    let order = Order::named(&ordering).ok_or(Error::Ordering(ordering.0))?;
    if !(1..=limits::MAX_SLOTS).contains(&partitions) {
        let (given, max) = (i64::from(partitions), i64::from(limits::MAX_SLOTS));
        return Err(Error::Number { what: "partitions", given, min: 1, max }.into());
    }
    let items = Table::open(ITEMS, c"_items_pkey");
    let ready_since = ready_since(&items, queue, order, partitions);
    let items = count(ITEMS, &items, queue);
    let later = count(LATER, &Table::open(LATER, c"_later_pkey"), queue);
    let dead = count(c"_dead_items", &Table::open(c"_dead_items", c"_dead_items_queue"), queue);
    let ats = [items.at, later.at, dead.at];
    // The oldest of the times; unknown if one of them is.
    let counted_at = if ats.contains(&None) { None } else { ats.into_iter().flatten().min() };
    Ok(Counts {
        items: items.rows,
        later: later.rows,
        dead: dead.rows,
        counted_at: time(counted_at),
        ready_since: time(ready_since),
    })
}
