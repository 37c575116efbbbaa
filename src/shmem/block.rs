//! The word of a block of slots: a bound. Nothing in the block is due before it, so a search for due slots may skip the
//! block.
//!
//! A living session is due at its deadline, or when it must be woken for work items. A dead one is due until its last
//! row is gone. The bound may be too early, and is **never too late**. Heartbeats only move deadlines further away, so
//! they leave the bound alone. It is read far more often than written:
//!
//! | step                                                 | does to a slot         | and to the block's word                      |
//! |------------------------------------------------------|------------------------|----------------------------------------------|
//! | heartbeat, postponing, freezing, thawing             | due later, or as before | nothing                                     |
//! | expiry                                               | dead, at its deadline  | nothing: the bound is past by then           |
//! | end without a trace, reclaiming, feeding             | not due any more       | nothing                                      |
//! | opening, capping, an early end that leaves rows, hunger | due earlier         | *then* lowers the bound, in a new version    |
//! | a look through the block                             | reads it               | *before* that reads the word; then raises the bound to the earliest that it has seen, if the version is the same |
//!
//! The version protects against a crossing of two processes: one has read a slot, and the other makes that slot due
//! before the first has read all. Without the version the first one's raise would undo the lowering, even a lowering
//! that changes no bound. A raise needs no new version: a bound that was right for a version stays right. Versions
//! repeat after 16 million lowerings of one block; that many do not happen during one look through 256 slots.
//!
//! **Order.** Every change of the word reads and writes it in one step. So a process that reads a version sees what was
//! done to slots before the lowering of that version, and before earlier ones. A change that it does not see yet comes
//! with another version. A look misses what is lowered after it. So the process that lowers the bound then wakes each
//! sleeper that would sleep too long. A sleeper announces its time of waking before it looks. Both have a memory fence
//! between their two steps, so at least one of them sees the other. Nothing here knows PostgreSQL.

use super::word::FOREVER;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Slots of a block. They are few enough to look through in under a microsecond, and enough to keep blocks few.
pub const SLOTS: usize = 256;

const VERSION_BITS: u32 = 24;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;
/// The bound is kept in units of 1,024 microseconds, rounded down.
const UNIT_BITS: u32 = 10;
/// The bound of a block where nothing is due: the last unit, 35 years after the machine was booted.
const NEVER: u64 = u64::MAX >> VERSION_BITS;

/// A block's word as a process has read it. A word of zero bits says: look through the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(u64);

impl Bound {
    fn new(units: u64, version: u64) -> Bound {
        Bound(units.min(NEVER) << VERSION_BITS | version & VERSION_MASK)
    }

    fn units(self) -> u64 {
        self.0 >> VERSION_BITS
    }

    /// Returns the bound: nothing in the block is due before it.
    pub fn at(self) -> u64 {
        if self.units() == NEVER { FOREVER } else { self.units() << UNIT_BITS }
    }

    fn lowered(self, due: u64) -> Bound {
        Bound::new(self.units().min(due >> UNIT_BITS), (self.0 & VERSION_MASK) + 1)
    }

    fn raised(self, earliest: u64) -> Bound {
        Bound::new(earliest >> UNIT_BITS, self.0)
    }
}

#[repr(transparent)]
pub struct Block(AtomicU64);

impl Block {
    /// Returns the word. Call this before you read the slots.
    pub fn read(&self) -> Bound {
        Bound(self.0.load(Ordering::Acquire))
    }

    /// Lowers the bound. Call this after you have made a slot due, and before you look for sleepers to wake.
    pub fn lower(&self, due: u64) {
        let lowered = |word: u64| Some(Bound(word).lowered(due).0);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, lowered).ok();
        fence(Ordering::SeqCst);
    }

    /// Raises the bound to `earliest`, when the first slot is due. Call this after you have read all slots.
    pub fn raise(&self, read: Bound, earliest: u64) {
        let raised = read.raised(earliest);
        if raised != read {
            self.0.compare_exchange(read.0, raised.0, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
    }
}

/// Separates two steps of a sleeper: it announces its time of waking first, and then looks for what is due.
pub fn before_look() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The model has this many slots in its block.
    const FEW: usize = 3;
    const OTHERS: usize = 2;

    /// One step of one process. Each process needs several steps for its work, and the others step in between.
    #[derive(Clone, Debug)]
    enum Step {
        /// Opens or caps a slot; or, if the process has not lowered the bound for its last change, lowers it.
        Change(usize, usize, u64),
        /// A heartbeat.
        Extend(usize, u64),
        End(usize),
        /// Reads the word, or the next slot, or raises the bound.
        Look(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let due = 0..8u64 << UNIT_BITS;
        let step = prop_oneof![
            3 => (0..OTHERS, 0..FEW, due.clone()).prop_map(|(who, slot, due)| Step::Change(who, slot, due)),
            1 => (0..FEW, due).prop_map(|(slot, by)| Step::Extend(slot, by)),
            1 => (0..FEW).prop_map(Step::End),
            6 => (0..OTHERS).prop_map(Step::Look),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// One process's look through the block: the word that it read, how many slots it has read, and the earliest of
    /// them.
    type Looking = Option<(Bound, usize, u64)>;

    #[derive(Default)]
    struct Model {
        slots: [Option<u64>; FEW],
        /// For each process, the slot whose bound it must still lower, and the time.
        pending: [Option<(usize, u64)>; OTHERS],
        looking: [Looking; OTHERS],
    }

    impl Model {
        fn step(&mut self, block: &Block, step: Step) {
            match step {
                Step::Change(who, slot, due) => match self.pending[who].take() {
                    Some((_, due)) => block.lower(due),
                    None => {
                        self.slots[slot] = Some(self.slots[slot].map_or(due, |at| at.min(due)));
                        self.pending[who] = Some((slot, due));
                    }
                },
                Step::Extend(slot, by) => self.slots[slot] = self.slots[slot].map(|at| at + by),
                Step::End(slot) => self.slots[slot] = None,
                Step::Look(who) => {
                    self.looking[who] = match self.looking[who] {
                        None => Some((block.read(), 0, FOREVER)),
                        Some((read, FEW, earliest)) => {
                            block.raise(read, earliest);
                            None
                        }
                        Some((read, slot, earliest)) => {
                            Some((read, slot + 1, earliest.min(self.slots[slot].unwrap_or(FOREVER))))
                        }
                    }
                }
            }
        }

        /// Returns when the first slot is due; slots whose bound must still be lowered do not count.
        fn first(&self) -> u64 {
            let is_pending = |slot: &usize| self.pending.iter().flatten().any(|(pending, _)| pending == slot);
            (0..FEW).filter(|slot| !is_pending(slot)).filter_map(|slot| self.slots[slot]).min().unwrap_or(FOREVER)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// However the steps cross each other, the bound is never too late: a look skips no slot that is due. A look
        /// that nothing crosses makes the bound as late as it may be.
        #[test]
        fn nothing_is_due_unseen(steps in steps()) {
            let (block, mut model) = (Block(AtomicU64::new(0)), Model::default());
            for step in steps {
                model.step(&block, step);
                prop_assert!(block.read().at() <= model.first());
            }
            model.pending = Default::default();
            block.raise(block.read(), model.first());
            prop_assert_eq!(block.read().at() >> UNIT_BITS, model.first() >> UNIT_BITS);
        }
    }

    #[test]
    fn a_lowering_that_lowers_nothing_prevents_a_raise() {
        let block = Block(AtomicU64::new(Bound::new(5, 0).0));
        let read = block.read();
        block.lower(7 << UNIT_BITS);
        block.raise(read, FOREVER);
        assert_eq!(block.read().at(), 5 << UNIT_BITS);
    }

    #[test]
    fn versions_come_round_and_leave_the_bound_alone() {
        let last = Bound::new(5, VERSION_MASK);
        assert_eq!(last.lowered(FOREVER), Bound::new(5, 0));
        assert_eq!(Bound::new(NEVER, 3).lowered(7_000), Bound::new(6, 4));
        assert_eq!((last.raised(FOREVER).at(), Bound(0).at()), (FOREVER, 0));
    }
}
