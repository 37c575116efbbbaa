//! One call of item_claim: what it looks for, and what it has taken so far.

use crate::base::limits;
use crate::call::Call;
use crate::item::moves::{self, Claimed};
use crate::item::{Claim, Queue, column};
use crate::lease::fence;
use crate::pg::json::Jsonb;
use crate::pg::table::{Locked, Table, Tuple};
use crate::pg::text::Text;
use crate::shmem::floors::{Lane, Start};
use crate::shmem::spans::Noted;
use std::sync::atomic::Ordering;

/// An item that has been claimed.
pub(super) struct Taken {
    pub(super) partition: i32,
    pub(super) place: i64,
    pub(super) id: i64,
    pub(super) key: Option<Text>,
    pub(super) payload: Option<Jsonb>,
    pub(super) attempt: i32,
}

/// A call that claims.
pub(super) struct Claimer<'a> {
    pub(super) call: &'a Call,
    pub(super) queue: &'a Queue,
    pub(super) want: usize,
    /// Drawn when there is something to claim.
    pub(super) fence: Option<i64>,
    pub(super) taken: Vec<Taken>,
    /// Bytes of their payloads, and of those that are just being taken.
    pub(super) bytes: usize,
    /// Lanes that have been looked at, as they were before.
    pub(super) seen: Vec<(Lane, Start)>,
    /// What was known of the queue's partitions before the last look, in a group's queue.
    pub(super) noted: Vec<Noted>,
    /// When something becomes due that has been seen not to be.
    pub(super) next_due: Option<i64>,
    /// The last fence whose claim has been looked for, and whether it has a row.
    known: Option<(i64, bool)>,
}

impl<'a> Claimer<'a> {
    pub(super) fn of(call: &'a Call, queue: &'a Queue, want: usize) -> Claimer<'a> {
        Claimer {
            call,
            queue,
            want,
            fence: None,
            taken: Vec::with_capacity(want.min(100)),
            bytes: 0,
            seen: Vec::new(),
            noted: Vec::new(),
            next_due: None,
            known: None,
        }
    }

    pub(super) fn has_all(&self) -> bool {
        self.taken.len() >= self.want || self.is_full()
    }

    /// Whether it has as many bytes as one claim gets.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= limits::MAX_CLAIM_BYTES
    }

    pub(super) fn fence(&mut self) -> i64 {
        let call = self.call;
        *self.fence.get_or_insert_with(|| {
            let fence = fence::next(call);
            // Whichever is first: the claim is looked for by its row if another came before with a greater fence.
            let first = &call.database.first_claim;
            first.compare_exchange(0, fence, Ordering::AcqRel, Ordering::Relaxed).ok();
            fence
        })
    }

    /// Whether no claim stands behind a fence.
    pub(super) fn is_free(&mut self, claim: i64) -> bool {
        let first = self.call.database.first_claim.load(Ordering::Acquire);
        if claim == 0 || first != 0 && claim >= first {
            return claim == 0;
        }
        match self.known {
            Some((fence, exists)) if fence == claim => !exists,
            _ => {
                let exists = Claim::exists(claim);
                self.known = Some((claim, exists));
                !exists
            }
        }
    }

    pub(super) fn start(&mut self, lane: Lane, from_beginning: bool) -> Start {
        let start = self.call.shared.floor(lane);
        self.seen.push((lane, start));
        if from_beginning { start.at_the_beginning() } else { start }
    }

    /// Claims the row that the scan stands at, unless another transaction has it in hand.
    pub(super) fn take(&mut self, items: &Table, row: &Tuple, partition: i32, place: i64) -> bool {
        let fence = self.fence();
        let attempt = row.required::<i32>(column::ATTEMPT).saturating_add(1);
        let (id, key, payload) = (row.required(column::ID), row.get(column::KEY), row.get(column::PAYLOAD));
        let changes = [(column::CLAIM as i32, Some(fence.into())), (column::ATTEMPT as i32, Some(attempt.into()))];
        let mine = items.try_update(&changes) == Locked::Mine;
        if mine {
            self.bytes += payload.as_ref().map_or(0, Jsonb::len);
            self.taken.push(Taken { partition, place, id, key, payload, attempt });
        }
        mine
    }

    /// Moves an item that is due and locked to those that are claimed.
    pub(super) fn take_due(&mut self, partition: i32, due: i64, id: i64, place: i64) {
        let fence = self.fence();
        let to = Claimed { queue: self.queue.number, partition, place, fence };
        let taken = moves::claim(self.call, due, id, to);
        self.taken.extend(taken.map(|(key, payload, attempt)| Taken { partition, place, id, key, payload, attempt }));
    }
}
