//! Dissolving: what dead or ending sessions have left is handed over if a session waits for it, and deleted otherwise.

use super::done::{Pass, come_back_to};
use super::waited::{Looked, Looks};
use crate::base::error::Result;
use crate::base::limits;
use crate::call::Call;
use crate::ending::takeover;
use crate::lease::candidate::HandOver;
use crate::lease::free::free;
use crate::lease::row::{self, LeaseRow, Leases, Seat};
use crate::lease::{handover, history, line};
use crate::pg::guard::Guard;
use crate::pg::table::Locked;
use crate::{group, item};
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashSet;

/// Hands over or deletes what ending sessions hold and wait for, up to `most` leases. The caller holds S of these
/// sessions exclusively, so no transaction of theirs is fenced. Returns whether anything is left.
pub fn dissolve(call: &Call, sessions: &[Uuid], most: usize) -> Result<bool> {
    let mut pass = Pass::default();
    Dissolution::new(call, most, true, sessions, &mut pass).run(&mut Looked::default())?;
    Ok(pass.more || pass.blocked)
}

/// Hands over or deletes, in a pass, what dead sessions hold and wait for. Their successors inherit first. Returns the
/// sessions that it has looked at, to be buried or recorded as dead. In a storm hand-overs come before all else, and
/// the other sessions' turn comes later.
pub(super) fn dissolve_dead(
    call: &Call,
    dead: &[Uuid],
    most: usize,
    looked: &mut Looked,
    pass: &mut Pass,
) -> Result<HashSet<Uuid>> {
    let inherited = takeover::inherit_from_dead(call, dead, most)?;
    pass.handed_over += inherited.leases;
    pass.blocked |= inherited.left;
    let mut sessions = dead.to_vec();
    sessions.retain(|session| !inherited.sessions.contains(session));
    let mut dissolution = Dissolution::new(call, most, false, &sessions, pass);
    dissolution.claimers = dead;
    dissolution.by_lease = inherited.sessions.is_empty();
    dissolution.run(looked)
}

/// One run over dead or ending sessions.
struct Dissolution<'a> {
    call: &'a Call,
    /// The most leases that are handed over, and the most that are freed.
    most: usize,
    /// Whether this transaction ends the sessions; otherwise they are dead.
    ending: bool,
    sessions: &'a [Uuid],
    /// The sessions whose claims are freed: `sessions`, and dead sessions whose successor inherits, since a successor
    /// inherits no claims.
    claimers: &'a [Uuid],
    /// The sessions among them that release what they hold.
    letting_go: HashSet<Uuid>,
    /// Whether only leases were taken so far. What groups and successors take is not known session by session.
    by_lease: bool,
    /// Resources that another transaction is changing.
    busy: HashSet<String>,
    looks: Looks,
    looked_at: HashSet<Uuid>,
    pass: &'a mut Pass,
}

impl<'a> Dissolution<'a> {
    fn new(call: &'a Call, most: usize, ending: bool, sessions: &'a [Uuid], pass: &'a mut Pass) -> Dissolution<'a> {
        Dissolution {
            call,
            most,
            ending,
            sessions,
            claimers: sessions,
            letting_go: if ending { sessions.iter().copied().collect() } else { HashSet::new() },
            by_lease: true,
            busy: HashSet::new(),
            looks: Looks::of_a_pass(),
            looked_at: HashSet::new(),
            pass,
        }
    }

    /// Runs all steps, and returns the sessions that it has looked at.
    fn run(mut self, looked: &mut Looked) -> Result<HashSet<Uuid>> {
        self.leave_groups()?;
        let handed_over = self.hand_over(looked);
        self.pass.handed_over += handed_over;
        if handed_over == self.most {
            return Ok(self.those_looked_at());
        }
        let freed = self.free_leases()?;
        let items = item::free(self.call, self.claimers, self.most);
        self.pass.more |= items.more;
        self.pass.blocked |= items.blocked;
        let left = self.leave_queues()?;
        self.pass.more |= freed == self.most || left == self.most;
        self.looked_at.extend(items.from);
        self.by_lease &= freed == self.most && left == 0;
        Ok(self.those_looked_at())
    }

    /// If it is not known session by session what was taken, all sessions count as looked at, and stay dead.
    fn those_looked_at(self) -> HashSet<Uuid> {
        if self.by_lease { self.looked_at } else { self.claimers.iter().copied().collect() }
    }

    fn leave_groups(&mut self) -> Result<()> {
        let mut outcome = HandOver::default();
        let letting_go = |row: &LeaseRow| row.session.is_some_and(|session| self.letting_go.contains(&session));
        let had_groups = group::leave_all(self.call, self.sessions, &letting_go, &mut outcome)?;
        self.by_lease &= !had_groups;
        self.pass.handed_over += outcome.granted.len();
        self.pass.blocked |= !outcome.busy.is_empty();
        self.pass.has_granted(outcome.granted);
        Ok(())
    }

    /// Hands over the leases that are waited for, page by page. Returns how many.
    fn hand_over(&mut self, looked: &mut Looked) -> usize {
        let mut handed_over = 0;
        loop {
            let page = looked.next(self.call, self.sessions, self.most - handed_over, &mut self.looks);
            if !self.ending {
                // This note keeps each grant from recording the deaths. By the end of this pass the sessions are buried
                // or recorded.
                self.call.seam().taken_from(&page.holders);
            }
            self.looked_at.extend(page.holders);
            let mut outcome = HandOver::default();
            let letting_go = |row: &LeaseRow| row.session.is_some_and(|session| self.letting_go.contains(&session));
            handover::hand_over_to(self.call, page.first, &page.seen, &letting_go, &mut outcome);
            // A semaphore may hand over more permits than were asked for.
            handed_over = self.most.min(handed_over + outcome.granted.len());
            self.pass.has_granted(outcome.granted);
            self.pass.blocked |= !outcome.busy.is_empty();
            if !self.ending && !come_back_to(self.call, &outcome.busy) {
                looked.forget(self.sessions);
            }
            self.busy.extend(outcome.busy);
            if page.is_last {
                return handed_over;
            }
            if handed_over == self.most || self.looks.are_spent() {
                self.pass.more = true;
                return handed_over;
            }
        }
    }

    fn free_leases(&mut self) -> Result<usize> {
        let (rows, sessions) = (Leases::open(), self.sessions);
        in_pages(self.most, |most, skip| row::held_by(sessions, most, skip), |held| Ok(self.free_page(&rows, held)))
    }

    fn free_page(&mut self, rows: &Leases, held: Vec<(Seat, LeaseRow)>) -> usize {
        let call = self.call;
        let (freed, locked): (Vec<_>, Vec<_>) = held.into_iter().partition(|((name, _), row)| {
            self.can_be_freed(name, row.fence) && rows.lock(row.tid, false) == Locked::Mine
        });
        self.pass.blocked |= !locked.is_empty();
        history::freed(call, freed.iter().map(|(seat, row)| (seat, row.fence, row.session)), !self.ending);
        self.looked_at.extend(freed.iter().filter_map(|(_, row)| row.session));
        let freed: Vec<(Seat, ItemPointerData)> = freed.into_iter().map(|(seat, row)| (seat, row.tid)).collect();
        free(call, &freed, !self.ending);
        for ((resource, slot), _) in &freed {
            call.seam().changed(resource, *slot);
        }
        let count = freed.len();
        self.pass.changed.extend(freed.into_iter().map(|(seat, _)| (seat, None)));
        count
    }

    /// Returns whether a lease may be freed. Leases are freed even before the looks have come to the end: a worker that
    /// does not remember its progress would never come to the end. A lease that may be waited for stays until it is
    /// looked at.
    fn can_be_freed(&self, name: &str, fence: i64) -> bool {
        if self.looks.are_spent() && line::may_be_waited_for(self.call, name) {
            return false;
        }
        // A grant of a free row does not ask for the old fence. So no lease is freed while a fenced transaction is
        // open. A lease that is waited for but could not be handed over stays as well: only its dead holder makes the
        // worker come back.
        self.ending || !self.busy.contains(name) && Guard::Fence(fence).is_free()
    }

    fn leave_queues(&mut self) -> Result<usize> {
        let (waiters, sessions) = (line::table(), self.sessions);
        in_pages(
            self.most,
            |most, skip| line::places_of(sessions, most, skip),
            |places| {
                let (left, locked): (Vec<_>, Vec<_>) =
                    places.into_iter().partition(|(_, tid)| waiters.lock(*tid, false) == Locked::Mine);
                self.pass.blocked |= !locked.is_empty();
                let (resources, mut places): (Vec<String>, Vec<ItemPointerData>) = left.into_iter().unzip();
                line::leave(self.call, &mut places);
                for resource in &resources {
                    self.call.seam().judge(resource);
                }
                Ok(resources.len())
            },
        )
    }
}

/// Fetches rows page by page and takes them, until `most` are taken. `take` returns how many it took; the others stay
/// and are passed over. Returns how many were taken.
fn in_pages<T>(
    most: usize,
    fetch: impl Fn(usize, usize) -> Vec<T>,
    mut take: impl FnMut(Vec<T>) -> Result<usize>,
) -> Result<usize> {
    let (mut taken, mut passed_over) = (0, 0);
    loop {
        let room = most - taken;
        let page = fetch(room, passed_over);
        let count = page.len();
        // `take` may take more than it was asked for.
        let took = take(page)?;
        taken = most.min(taken + took);
        passed_over += count.saturating_sub(took);
        if count < room || taken == most || passed_over > limits::MAX_PASSED_OVER {
            return Ok(taken);
        }
    }
}
