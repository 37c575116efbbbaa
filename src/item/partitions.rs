//! Which partitions of a queue a claim looks at, and in which order.
//!
//! A session claims from the partitions of the group that it owns, and stops once it has enough. So the order decides
//! which partition is served. A count in the backend would make no fair order: all sessions and queues of a pooled
//! connection would share it, and each new connection would begin a new one. Instead each claim draws its order by
//! chance. So every partition with items comes first equally often, whatever else the connection does, and nothing
//! needs to be remembered.
//!
//! A claim skips partitions without an item for it, however many they are: see [`crate::shmem::spans`].

use super::Queue;
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::group;
use crate::lease::row::{self, Leases};
use crate::pg::{clock, random};
use crate::shmem::spans::{self, Noted};
use pgrx::Uuid;
use std::collections::HashSet;

/// Shuffles a list step by step, so that elements that are not asked for cost nothing.
pub fn shuffled<T: Copy>(mut list: Vec<T>) -> impl Iterator<Item = T> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = list.len() - at;
        if left == 0 {
            return None;
        }
        list.swap(at, at + random::below(left));
        at += 1;
        Some(list[at - 1])
    })
}

/// Up to this many partitions of a session are read for each claim. If it owns more, each partition that may have items
/// is checked.
const FEW: usize = 32;
/// After so many partitions of other sessions, all of this session's are read.
const MISSES: usize = 64;

/// The partitions from which a session may claim items, in a group's queue.
pub struct Owned<'a> {
    call: &'a Call,
    queue: &'a Queue,
    group: &'a str,
    session: Uuid,
    /// The number of the group's partitions.
    count: i32,
    /// The session's partitions, if they are few.
    few: Option<Vec<i32>>,
}

impl<'a> Owned<'a> {
    /// Returns `None` for a queue without a group, which has one partition for all.
    pub fn of(call: &'a Call, queue: &'a Queue, session: Uuid) -> Result<Option<Owned<'a>>> {
        let Some(group) = queue.group.as_deref() else { return Ok(None) };
        let count = queue.partitions()?;
        let some = row::some_of_session(group, session, FEW + 1);
        if some.is_empty() && !group::is_member(group, session) {
            return Err(Error::NotMember { group: group.to_owned() }.into());
        }
        let few = (some.len() <= FEW).then(|| some.into_iter().map(|row| row.slot).collect());
        Ok(Some(Owned { call, queue, group, session, count, few }))
    }

    /// Returns the session's partitions, if they are few.
    pub fn known(&self) -> Option<&[i32]> {
        self.few.as_deref()
    }

    /// Returns the spans of the queue's partitions. A claim notes them before it looks.
    pub fn note(&self) -> Vec<Noted> {
        let now = clock::timestamp();
        let spans = self.count.div_euclid(spans::WIDTH) + i32::from(self.count % spans::WIDTH != 0);
        self.call.shared.spans(self.call.home.database, self.queue.number, spans, now)
    }

    /// Returns the earliest time at which an item becomes due in a skipped partition: one of the session's, or another
    /// in the same span.
    pub fn next_due(&self, noted: &[Noted]) -> Option<i64> {
        let near = |partition: &i32| noted.get((*partition / spans::WIDTH) as usize);
        let first = match &self.few {
            Some(few) => few.iter().filter_map(near).map(|noted| noted.due).min(),
            None => noted.iter().map(|noted| noted.due).min(),
        };
        first.filter(|due| *due < i64::MAX)
    }

    /// Returns the session's partitions that may have items, in an order drawn by chance. Shared memory does not know
    /// yet of items that this transaction has freed, so their partitions are added.
    pub fn candidates<'b>(&'b self, noted: &'b [Noted]) -> Box<dyn Iterator<Item = i32> + 'b> {
        let freed = self.call.seam().freed(self.queue.number);
        let may = move |partition: &i32| {
            let span = noted.get((*partition / spans::WIDTH) as usize);
            span.is_none_or(|span| span.may & 1 << (*partition % spans::WIDTH) != 0)
                || freed.as_ref().is_none_or(|freed| freed.contains(partition))
        };
        match &self.few {
            Some(few) => Box::new(shuffled(few.iter().copied().filter(may).collect())),
            None => Box::new(shuffled((0..self.count).filter(may).collect()).filter(self.is_mine())),
        }
    }

    /// Checks the row of each partition. After some that other sessions own, reads all rows of this session.
    fn is_mine(&self) -> impl FnMut(&i32) -> bool {
        let (leases, mut misses, mut all) = (Leases::open(), 0, None::<HashSet<i32>>);
        move |partition| {
            if let Some(all) = &all {
                return all.contains(partition);
            }
            let mine = leases.row(self.group, *partition).is_some_and(|row| row.session == Some(self.session));
            misses += usize::from(!mine);
            if misses == MISSES {
                all = Some(row::of_session(self.group, self.session).into_iter().map(|row| row.slot).collect());
            }
            mine
        }
    }
}
