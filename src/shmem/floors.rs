//! Floors: where a claim of work items begins to look.
//!
//! A lane is a range of the key of one table: the ready items of a queue in one partition, by their places, or the
//! items of that partition that are due later, by their times. Items leave a lane at its front. Their dead index
//! entries stay while any open snapshot may still see them, and a claim that began at the front would step over all of
//! them. So each lane has a floor: **no item that is free to be claimed is below it, except items made free by a
//! transaction that is still open**.
//!
//! * A claim notes the floor and the floor's turn (below), scans from the floor, and [`Shared::raise`]s it to the first
//!   place that the claim could not pass. At that place is an item that an open or prepared transaction has locked, or
//!   an item that the claim did not want. The scan passes items that are claimed.
//! * Some transactions make an item free: they add it, or they give back, fail or free a claimed one. Such a
//!   transaction [`Shared::lower`]s the floor at its end, once the item is visible. So does a claim that is rolled
//!   back, as without an order it may have raised the floor over its own items. At PREPARE, both kinds of transactions
//!   lower the floor: then the item is in flight, and no floor passes it until the end.
//! * Each lowering begins a new turn. A scan reads the turn before it begins, and raises the floor no higher than any
//!   lowering since that turn. So an item that becomes visible during a scan is not lost. Either the scan saw it, at
//!   least in flight; or its lowering came after the turn was read, and undoes or bounds the raise. The lane's entry
//!   keeps the lowest place of the lowerings since each of two turns; a scan that is older than both turns raises
//!   nothing.
//! * An item that waits for another one of its key is not free to be claimed, and a floor may pass it. But the
//!   transaction that finishes the other item must find the waiting one without the floor (see [`crate::item`]). Then
//!   the waiting one is moved above the floor, or the floor is lowered. Even so, a session that is about to sleep in
//!   vain learns that an item has become free.
//!
//! The line of sessions that wait for a lease is also a lane. Nothing ever lowers its floor (see
//! [`crate::lease::line`]).
//!
//! A lane without an entry has no floor. A claim scans it from its beginning; that is slower, and still right. So
//! entries are evicted at will, and after a crash or a promotion there are none. Turns are never used twice, so a raise
//! that was meant for an evicted entry does nothing.

use super::parts::{FLOORS, Floor, Lowered};
use super::shared::{Lock, Shared};

pub use super::parts::Lane;
use std::sync::atomic::Ordering;

/// What a claimer has noted before its scan.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    turn: u64,
    stirred: u64,
    pub at: i64,
}

impl Start {
    /// Returns the same turn, with no floor.
    pub fn at_the_beginning(self) -> Start {
        Start { at: i64::MIN, ..self }
    }
}

/// A place above all others: lowering a floor to it changes no floor.
pub const NOWHERE: i64 = i64::MAX;

/// How many lanes share a bucket of entries. Lanes of keys' heads have half of the buckets for themselves, as there may
/// be many.
const WAYS: usize = 8;

impl Lane {
    fn bucket(self) -> usize {
        let parts = [self.database, self.table, self.queue.cast_unsigned(), self.partition.cast_unsigned()];
        let mix = |hash: u64, part: u32| (hash ^ u64::from(part)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let half = FLOORS / WAYS / 2;
        parts.into_iter().fold(0, mix) as usize % half + if self.partition < 0 { half } else { 0 }
    }
}

impl Floor {
    fn lower(&mut self, turn: u64, to: i64) {
        (self.turn, self.at) = (turn, self.at.min(to));
        for lowered in &mut self.lowered {
            lowered.to = lowered.to.min(to);
        }
    }

    /// Raises the floor for a scan that has read it in `turn`: to `to`, but no higher than the lowerings since that
    /// turn.
    fn raise(&mut self, turn: u64, to: i64) {
        let Some(index) = self.lowered.iter().position(|lowered| lowered.since <= turn) else { return };
        let bound = if turn == self.turn { i64::MAX } else { self.lowered[index].to };
        self.at = self.at.max(to.min(bound));
        if index == 0 {
            // Scans that begin from now on are not bound by earlier lowerings.
            self.lowered = [Lowered { since: self.turn, to: i64::MAX }, self.lowered[0]];
        }
    }
}

impl Shared {
    /// Returns the entries among which a lane's entry is, if it has one.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively if it writes.
    #[allow(clippy::mut_from_ref)]
    unsafe fn ways(&self, lane: Lane) -> &mut [Floor] {
        // SAFETY: within the array; the caller promises that no other process looks
        unsafe { std::slice::from_raw_parts_mut(self.floors.add(lane.bucket() * WAYS), WAYS) }
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.header.turns.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns where a scan of the lane begins.
    pub fn floor(&self, lane: Lane) -> Start {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        let ways = unsafe { self.ways(lane) };
        if let Some(known) = ways.iter().find(|floor| floor.lane == lane) {
            return Start { turn: known.turn, stirred: known.stirred, at: known.at };
        }
        let turn = self.next_turn();
        let new = Floor { turn, stirred: 0, at: i64::MIN, lane, lowered: [Lowered { since: turn, to: i64::MAX }; 2] };
        let oldest = ways.iter_mut().min_by_key(|floor| if floor.lane.database == 0 { 0 } else { floor.turn });
        if let Some(oldest) = oldest {
            *oldest = new;
        }
        Start { turn: new.turn, stirred: new.stirred, at: new.at }
    }

    /// Returns the floor of a lane, for a caller that will not raise it.
    pub fn floor_at(&self, lane: Lane) -> i64 {
        let _held = self.lock(Lock::Floors, false);
        // SAFETY: under the lock, and only read
        let known = unsafe { self.ways(lane) }.iter().find(|floor| floor.lane == lane).map(|floor| floor.at);
        known.unwrap_or(i64::MIN)
    }

    /// Lowers the floor, since an item at a place of the lane is free to be claimed, and visible. [`NOWHERE`] says that
    /// the floor has not passed the free item.
    pub fn lower(&self, lane: Lane, to: i64) {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        unsafe { self.stir(lane) };
        // SAFETY: as above
        if let Some(known) = unsafe { self.ways(lane) }.iter_mut().find(|floor| floor.lane == lane) {
            match to {
                NOWHERE => known.stirred = self.next_turn(),
                _ => known.lower(self.next_turn(), to),
            }
        }
    }

    /// Raises the floor: a scan that began at `from` has seen that no item below the place `to` is free.
    pub fn raise(&self, lane: Lane, from: Start, to: i64) {
        if to <= from.at {
            return;
        }
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        let ways = unsafe { self.ways(lane) };
        if let Some(known) = ways.iter_mut().find(|floor| floor.lane == lane) {
            known.raise(from.turn, to);
        }
    }

    /// Returns whether no item has become free in the lane since a scan began.
    pub fn is_turn(&self, lane: Lane, from: Start) -> bool {
        let now = self.floor(lane);
        (now.turn, now.stirred) == (from.turn, from.stirred)
    }

    /// Forgets the floors of a database: more items have become free than could be noted.
    pub fn forget_floors(&self, database: u32) {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        unsafe { self.forget_spans(database) };
        for index in 0..FLOORS {
            // SAFETY: within the array, under the lock
            let floor = unsafe { &mut *self.floors.add(index) };
            if floor.lane.database == database {
                floor.lane.database = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LANE: Lane = Lane { database: 1, table: 1, queue: 1, partition: 0 };

    #[derive(Clone, Debug)]
    enum Step {
        Lower(i64),
        /// One of the scans begins; or it ends, and has seen no free item below a place, except items that became free
        /// meanwhile.
        Scan(usize, i64),
    }

    proptest! {
        /// However lowerings and scans cross, a floor that a scan raises stays below each item that became free since
        /// that scan began.
        #[test]
        fn nothing_is_passed_over(steps in prop::collection::vec(prop_oneof![
            (0..9i64).prop_map(Step::Lower),
            (0..3usize, 0..9i64).prop_map(|(scan, to)| Step::Scan(scan, to)),
        ], 1..60)) {
            let start = Lowered { since: 1, to: i64::MAX };
            let mut floor = Floor { turn: 1, stirred: 0, at: i64::MIN, lane: LANE, lowered: [start; 2] };
            // For each scan, the turn that it has read, and the lowest place that a lowering has had since.
            let (mut turn, mut scans) = (1, [None::<(u64, i64)>; 3]);
            for step in steps {
                match step {
                    Step::Lower(to) => {
                        turn += 1;
                        floor.lower(turn, to);
                        scans.iter_mut().flatten().for_each(|(_, low)| *low = to.min(*low));
                        prop_assert!(floor.at <= to);
                    }
                    Step::Scan(scan, to) => match scans[scan].take() {
                        None => scans[scan] = Some((floor.turn, i64::MAX)),
                        Some((began, low)) => {
                            let (before, alone) = (floor.at, began == floor.turn);
                            floor.raise(began, to);
                            prop_assert!(floor.at <= before.max(to.min(low)));
                            prop_assert!(!alone || floor.at == before.max(to));
                        }
                    },
                }
            }
        }
    }
}
