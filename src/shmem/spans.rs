//! Spans: which partitions of a queue a claim may skip. With them an empty partition among thousands costs nothing.
//!
//! A span is 64 neighbouring partitions of a queue. It has a bit for each partition in which something may be claimed.
//! It also has the first time at which something becomes due in one of the other partitions. **A bit is clear only if
//! no item in the partition is free to be claimed, and none is in flight (changed by a transaction that has not ended).
//! Items that become due later do not count.**
//!
//! * A claim notes the span's turn and looks through the partition. If it finds nothing, [`Shared::pass_over`] clears
//!   the bit. If the claim is rolled back, it lowers the lane's floor (see [`super::floors`]), which sets the bit
//!   again.
//! * Each lowering of a floor (see [`super::floors`]) sets the bit under the same lock, and begins a new turn. A bit is
//!   cleared only in the turn that was noted before the look. So what becomes free during the look is not lost. The
//!   items of a prepared transaction are in flight for every look, and keep the bit set until it has ended.
//! * Once something has become due, all bits of the span are set: the span does not record the partition in which that
//!   happened.
//!
//! A span without an entry has all bits set. So entries may be evicted at will. Turns are never used twice.

use super::parts::{Lane, SPANS, Span};
use super::shared::{Lock, Shared};

/// What a claimer has noted of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    turn: u64,
    /// The partitions in which something may be claimed, by their bits.
    pub may: u64,
    /// When something becomes due in another partition; the greatest number for never.
    pub due: i64,
}

impl Noted {
    pub fn is_same_turn(&self, other: &Noted) -> bool {
        self.turn == other.turn
    }
}

/// How many partitions a span has.
pub const WIDTH: i32 = u64::BITS as i32;
const WAYS: usize = 8;

impl Shared {
    /// Returns the entries among which a span's entry is, if it has one.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively.
    #[allow(clippy::mut_from_ref)]
    unsafe fn span_ways(&self, database: u32, queue: i32, number: i32) -> &mut [Span] {
        let mix = |hash: u64, part: u32| (hash ^ u64::from(part)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let hash = [database, queue.cast_unsigned(), number.cast_unsigned()].into_iter().fold(0, mix);
        // SAFETY: within the array; the caller promises that no other process looks
        unsafe { std::slice::from_raw_parts_mut(self.spans.add(hash as usize % (SPANS / WAYS) * WAYS), WAYS) }
    }

    /// Returns the entry of a span; makes one, with all bits set, if there is none.
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

    /// Returns what is known of the first `count` spans of a queue.
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

    /// Returns the turn of the span in which a lane is.
    pub fn span_turn(&self, lane: Lane) -> u64 {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        unsafe { self.span(lane.database, lane.queue, lane.partition / WIDTH) }.turn
    }

    /// Notes the result of a look that began in `turn`: the lane's partition has nothing to claim before `due`.
    pub fn pass_over(&self, lane: Lane, turn: u64, due: i64) {
        let _held = self.lock(Lock::Floors, true);
        // SAFETY: under the lock
        let span = unsafe { self.span(lane.database, lane.queue, lane.partition / WIDTH) };
        if span.turn == turn {
            span.may &= !(1 << (lane.partition % WIDTH));
            span.due = span.due.min(due);
        }
    }

    /// Notes that something may be claimed in a lane from now on.
    ///
    /// # Safety
    /// The caller holds Lock::Floors, exclusively.
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
        // SAFETY: the whole array; the caller promises that no other process looks
        for span in unsafe { std::slice::from_raw_parts_mut(self.spans, SPANS) } {
            if span.database == database {
                span.database = 0;
            }
        }
    }
}
