//! Which partitions of a queue a claim looks at, and in which order.
//!
//! A session claims from the partitions of the group that it owns, and stops once it has what it asks for. So the order
//! decides which partition is served, and no rule that counts anything would be fair: a count of the backend is shared
//! by all sessions and queues of a pooled connection, and begins anew with each connection. The order is drawn by
//! chance for each claim. Each partition that has items is the first one as often as any other, whatever else the
//! connection does, and nothing has to be remembered.
//!
//! A claim does not look at partitions that have nothing for it, however many they are: see [`crate::shmem::spans`].

use super::Queue;
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::group;
use crate::lease::row::{self, Leases};
use crate::pg::{clock, random};
use crate::shmem::spans::{self, Noted};
use pgrx::Uuid;
use std::collections::HashSet;

/// Shuffles a list as it goes through it, so that the elements after those that are asked for cost nothing.
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

/// Partitions of a session that are read for each claim; one that owns more is asked for each partition in which
/// something may be had.
const FEW: usize = 32;
/// Partitions of others that are met before all of a session's are read.
const MISSES: usize = 64;

/// The partitions that a session may claim items of, in a queue of a group.
pub struct Owned<'a> {
    call: &'a Call,
    queue: &'a Queue,
    group: &'a str,
    session: Uuid,
    /// All that the group has.
    count: i32,
    /// All that the session owns, if they are few.
    few: Option<Vec<i32>>,
}

impl<'a> Owned<'a> {
    /// `None` where the queue has one partition, for all.
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

    /// All that the session owns, if they are few.
    pub fn known(&self) -> Option<&[i32]> {
        self.few.as_deref()
    }

    /// What is known of the queue's partitions, to be noted before a look.
    pub fn note(&self) -> Vec<Noted> {
        let now = clock::timestamp();
        let spans = self.count.div_euclid(spans::WIDTH) + i32::from(self.count % spans::WIDTH != 0);
        self.call.shared.spans(self.call.home.database, self.queue.number, spans, now)
    }

    /// When something becomes due in a partition that is passed over: of the session, or near one.
    pub fn next_due(&self, noted: &[Noted]) -> Option<i64> {
        let near = |partition: &i32| noted.get((*partition / spans::WIDTH) as usize);
        let first = match &self.few {
            Some(few) => few.iter().filter_map(near).map(|noted| noted.due).min(),
            None => noted.iter().map(|noted| noted.due).min(),
        };
        first.filter(|due| *due < i64::MAX)
    }

    /// Returns those that may have something, in an order that is drawn by chance. No other session knows of what this
    /// transaction has made free.
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

    /// Asks for the row of each partition, and after some that are others' for all rows of the session.
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
