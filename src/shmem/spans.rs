//! Spans: which partitions of a queue a claim may pass over, so that one of thousands of empty partitions costs
//! nothing.
//!
//! A span is 64 partitions of a queue next to each other. It has a bit for each in which something may be had, and the
//! first time at which something becomes due in one of the others. **A bit is clear only if nothing in the partition is
//! free to be claimed, nor in flight, but for what becomes due later.**
//!
//! * A claim notes the span's turn, looks through the partition, and [`Shared::pass_over`] clears its bit if there is
//!   nothing. What it has taken is back with a lowering of its lane if it fails.
//! * Each lowering of a floor (see [`super::floors`]) sets the bit, under the same lock, and begins a new turn; a bit
//!   is cleared only in the turn that was noted before the look. So what becomes free behind a look's back is not lost.
//!   What is prepared is in flight for every look, and keeps the bit until it has ended.
//! * Once something has become due all bits of the span are set: whose it was is not kept.
//!
//! A span without an entry has all bits set. So entries are evicted at will; turns are never used twice.

use super::parts::{Lane, SPANS, Span};
use super::shared::{Lock, Shared};

/// What a claimer has noted of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    turn: u64,
    /// The partitions in which something may be had.
    pub may: u64,
    /// When something becomes due in another one; the greatest number for never.
    pub due: i64,
}

impl Noted {
    pub fn is_same_turn(&self, other: &Noted) -> bool {
        self.turn == other.turn
    }
}

/// Partitions of one.
pub const WIDTH: i32 = u64::BITS as i32;
const WAYS: usize = 8;

impl Shared {
    /// The entries among which that of a span is; under the lock.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively.
    #[allow(clippy::mut_from_ref)]
    unsafe fn span_ways(&self, database: u32, queue: i32, number: i32) -> &mut [Span] {
        let mix = |hash: u64, part: u32| (hash ^ u64::from(part)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let hash = [database, queue.cast_unsigned(), number.cast_unsigned()].into_iter().fold(0, mix);
        // SAFETY: within the array, as the caller promises no other process looks
        unsafe { std::slice::from_raw_parts_mut(self.spans.add(hash as usize % (SPANS / WAYS) * WAYS), WAYS) }
    }

    /// What is known of a span; under the lock.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively.
    #[allow(clippy::mut_from_ref)]
    unsafe fn span(&self, database: u32, queue: i32, number: i32) -> &mut Span {
        // SAFETY: as the caller promises
        let ways = unsafe { self.span_ways(database, queue, number) };
        let is_it = |span: &Span| (span.database, span.queue, span.number) == (database, queue, number);
        let known = ways.iter().position(is_it);
        let oldest = (0..WAYS).min_by_key(|way| if ways[*way].database == 0 { 0 } else { ways[*way].turn });
        let at = known.or(oldest).unwrap_or(0);
        if known.is_none() {
            ways[at] = Span { turn: self.next_turn(), may: u64::MAX, due: i64::MAX, database, queue, number };
        }
        &mut ways[at]
    }

    /// What is known of the first spans of a queue, so many.
    pub fn spans(&self, database: u32, queue: i32, count: i32, now: i64) -> Vec<Noted> {
        let mut spans = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        let _held = self.lock(Lock::Floors, true);
        for number in 0..count {
            // SAFETY: under the lock
            let span = unsafe { self.span(database, queue, number) };
            if span.due <= now {
                (span.may, span.due) = (u64::MAX, i64::MAX);
            }
            spans.push(Noted { turn: span.turn, may: span.may, due: span.due });
        }
        spans
    }

    /// The turn of the span that a lane is in.
    pub fn span_turn(&self, lane: Lane) -> u64 {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        unsafe { self.span(lane.database, lane.queue, lane.partition / WIDTH) }.turn
    }

    /// A look that began in a turn has found nothing more in a partition before something becomes due.
    pub fn pass_over(&self, lane: Lane, turn: u64, due: i64) {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        let span = unsafe { self.span(lane.database, lane.queue, lane.partition / WIDTH) };
        if span.turn == turn {
            span.may &= !(1 << (lane.partition % WIDTH));
            span.due = span.due.min(due);
        }
    }

    /// Something may be had in a lane from now on. The caller holds Lock::Floors, exclusively.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn stir(&self, lane: Lane) {
        if lane.partition < 0 {
            return;
        }
        let number = lane.partition / WIDTH;
        // SAFETY: as the caller promises
        let ways = unsafe { self.span_ways(lane.database, lane.queue, number) };
        let is_it = |span: &&mut Span| (span.database, span.queue, span.number) == (lane.database, lane.queue, number);
        if let Some(span) = ways.iter_mut().find(is_it) {
            span.may |= 1 << (lane.partition % WIDTH);
            span.turn = self.next_turn();
        }
    }

    /// Forgets the spans of a database.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively.
    pub(super) unsafe fn forget_spans(&self, database: u32) {
        // SAFETY: the array, as the caller promises no other process looks
        for span in unsafe { std::slice::from_raw_parts_mut(self.spans, SPANS) } {
            if span.database == database {
                span.database = 0;
            }
        }
    }
}
