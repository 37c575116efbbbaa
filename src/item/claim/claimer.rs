//! One call of item_claim: what it asks for, and what it has taken so far.

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

/// An item that this call has claimed.
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
    /// The fence of this claim, drawn once there is an item to claim.
    pub(super) fence: Option<i64>,
    pub(super) taken: Vec<Taken>,
    /// Bytes of the payloads of all items that are taken, or are being taken.
    pub(super) bytes: usize,
    /// The lanes that the last look has read, each as it stood before the look read it.
    pub(super) seen: Vec<(Lane, Start)>,
    /// In a group's queue: the spans of its partitions, as noted before the last look.
    pub(super) noted: Vec<Noted>,
    /// The earliest time at which an item that the last look has seen, or whose partition it skipped, becomes due.
    pub(super) next_due: Option<i64>,
    /// The last fence that was looked up, and whether its claim has a row.
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

    /// Returns whether the call has as many bytes as one claim may get.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= limits::MAX_CLAIM_BYTES
    }

    pub(super) fn fence(&mut self) -> i64 {
        let call = self.call;
        *self.fence.get_or_insert_with(|| {
            let fence = fence::next(call);
            // The first call sets the bound. If that call has drawn a greater fence than this one, `is_free` looks up
            // the row of this claim.
            let first = &call.database.first_claim;
            first.compare_exchange(0, fence, Ordering::AcqRel, Ordering::Relaxed).ok();
            fence
        })
    }

    /// Returns whether an item with this claim is free: the claim is 0 or has no row. A claim from the bound on has
    /// one.
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

    /// Claims the row at which the scan stands, unless another transaction has locked or changed the row.
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

    /// Moves a locked, due item to the table of ready and claimed items.
    pub(super) fn take_due(&mut self, partition: i32, due: i64, id: i64, place: i64) {
        let fence = self.fence();
        let to = Claimed { queue: self.queue.number, partition, place, fence };
        let taken = moves::claim(self.call, due, id, to);
        self.taken.extend(taken.map(|(key, payload, attempt)| Taken { partition, place, id, key, payload, attempt }));
    }
}
