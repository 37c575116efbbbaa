//! Claiming without order: what one call takes from a partition of a queue whose items may go in any order.

use super::claimer::Claimer;
use crate::item::{ITEMS, LATER, column, id, lane};
use crate::pg::clock;
use crate::pg::table::{Flight, Key, Locked, Sight, Table};

impl Claimer<'_> {
    /// Claims the ready items of a partition. Returns whether the partition has no further item, neither free nor in
    /// flight. `from_beginning`: whether the look begins below the floor, because this transaction has freed items
    /// there.
    pub(super) fn ready(&mut self, partition: i32, from_beginning: bool) -> bool {
        let lane = lane(self.call, ITEMS, self.queue.number, partition);
        let start = self.start(lane, from_beginning);
        let items = Table::open(ITEMS, c"_items_pkey");
        let (mut first, mut stop) = (None, i64::MAX);
        let key = [Key::Int(self.queue.number), Key::Int(partition), Key::From(start.at)];
        items.scan(Sight::Dirty, &key, |row, flight| {
            pgrx::check_for_interrupts!();
            let (place, claim) = (row.required(column::PLACE), row.required(column::CLAIM));
            if self.fence == Some(claim) {
                return None;
            }
            if flight != Flight::None {
                stop = stop.min(place);
            } else if self.is_free(claim) {
                if self.has_all() {
                    stop = stop.min(place);
                    return Some(());
                } else if self.take(&items, row, partition, place) {
                    first = first.or(Some(place));
                } else {
                    stop = stop.min(place);
                }
            }
            None
        });
        if let Some(first) = first {
            self.call.seam().places(lane, first, true);
        }
        self.call.shared.raise(lane, start, stop);
        stop == i64::MAX
    }

    /// Claims the due items of a partition. Returns the time before which no other item becomes due, if that is known.
    pub(super) fn due(&mut self, partition: i32) -> Option<i64> {
        let lane = lane(self.call, LATER, self.queue.number, partition);
        let start = self.start(lane, false);
        let later = Table::open(LATER, c"_later_pkey");
        let now = clock::timestamp();
        let (mut found, mut stop) = (Vec::new(), i64::MAX);
        let room = self.want - self.taken.len();
        let key = [Key::Int(self.queue.number), Key::Int(partition), Key::From(start.at)];
        later.scan(Sight::Dirty, &key, |row, flight| {
            let (due, id): (i64, i64) = (row.required(3), row.required(4));
            if due > now || found.len() == room || self.is_full() {
                if due > now {
                    self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
                }
                stop = stop.min(due);
                return Some(());
            }
            if flight == Flight::None && later.lock(row.tid(), false) == Locked::Mine {
                self.bytes += row.size(column::LATER_PAYLOAD);
                found.push((due, id));
            } else {
                stop = stop.min(due);
            }
            None
        });
        if let Some((first, _)) = found.first() {
            self.call.seam().places(lane, *first, true);
        }
        for (due, id) in found {
            self.take_due(partition, due, id, id::next(self.call));
        }
        self.call.shared.raise(lane, start, stop);
        (stop > now).then_some(stop)
    }
}
