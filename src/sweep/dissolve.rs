//! What dead or ending sessions have left: it is handed over where somebody waits for it, and taken away otherwise.

use super::waited::{Looked, Looks};
use super::{Pass, come_back_to};
use crate::call::Call;
use crate::claim::{self, LeaseRow, Leases, Seat};
use crate::error::Result;
use crate::guard::Guard;
use crate::handover::{self, HandOver};
use crate::session::takeover::{self, Inherited};
use crate::table::Locked;
use crate::{group, history, item, queue, release};
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashSet;

/// Rows in somebody's hands that one pass looks beyond.
const MAX_PASSED_OVER: usize = 20_000;

/// Takes away what ending sessions hold and wait for, up to `most` leases; hands over what is waited for. The caller holds their S
/// exclusively, so no transaction of theirs is fenced. Whether anything is left.
pub fn dissolve(call: &Call, sessions: &[Uuid], most: usize) -> Result<bool> {
    let mut pass = Pass::default();
    dissolve_into(call, sessions, most, true, &mut Looked::default(), &mut pass)?;
    Ok(pass.more || pass.blocked)
}

/// Fetches rows page by page and takes what can be had of them, until `most` are taken. `take` says how many it took; the others stay
/// where they are and are passed over. How many were taken.
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
        // With one permit there may be more to be handed over than was asked for.
        let took = take(page)?;
        taken = most.min(taken + took);
        passed_over += count.saturating_sub(took);
        if count < room || taken == most || passed_over > MAX_PASSED_OVER {
            return Ok(taken);
        }
    }
}

/// The same, into what a pass has done. Which of the sessions have been looked at, so that they may be buried, or are recorded as dead: in a storm
/// hand-overs come before all else, and the others' turn comes later.
pub(super) fn dissolve_into(
    call: &Call,
    sessions: &[Uuid],
    most: usize,
    ending: bool,
    looked: &mut Looked,
    pass: &mut Pass,
) -> Result<HashSet<Uuid>> {
    let inherited = if ending { Inherited::default() } else { takeover::inherit_from_dead(call, sessions, most)? };
    pass.handed_over += inherited.leases;
    pass.blocked |= inherited.left;
    let (ended, mut sessions) = (sessions, sessions.to_vec());
    sessions.retain(|session| !inherited.sessions.contains(session));
    let sessions = sessions.as_slice();
    let theirs: HashSet<Uuid> = sessions.iter().copied().collect();
    let letting_go = |row: &LeaseRow| ending && row.session.is_some_and(|session| theirs.contains(&session));
    let mut outcome = HandOver::default();
    let had_groups = group::leave_all(call, sessions, &letting_go, &mut outcome)?;
    pass.handed_over += outcome.granted.len();
    pass.blocked |= !outcome.busy.is_empty();
    pass.has_granted(outcome.granted);
    let mut busy: HashSet<String> = HashSet::new();
    let mut looked_at = HashSet::new();
    let (mut handed_over, mut looks) = (0, Looks::of_a_pass());
    loop {
        let page = looked.next(call, sessions, most - handed_over, &mut looks);
        if !ending {
            // Not to be recorded by each grant: by the end of this pass they are dead for good, buried or recorded.
            call.seam().taken_from(&page.holders);
        }
        looked_at.extend(page.holders);
        let mut outcome = HandOver::default();
        handover::hand_over_to(call, page.first, &page.seen, &letting_go, &mut outcome);
        // With one permit there may be more to be handed over than was asked for.
        handed_over = most.min(handed_over + outcome.granted.len());
        pass.has_granted(outcome.granted);
        pass.blocked |= !outcome.busy.is_empty();
        if !ending && !come_back_to(call, &outcome.busy) {
            looked.forget(sessions);
        }
        busy.extend(outcome.busy);
        if page.is_last {
            break;
        }
        if handed_over == most || looks.are_spent() {
            pass.more = true;
            break;
        }
    }
    pass.handed_over += handed_over;
    // What groups and successors have taken is not told session by session: then all have been looked at, and stay dead.
    let everybody = || ended.iter().copied().collect();
    let by_lease = !had_groups && inherited.sessions.is_empty();
    if handed_over == most {
        return Ok(if by_lease { looked_at } else { everybody() });
    }
    let rows = Leases::open();
    // A free row is granted without asking for its old fence, so it is not made free while a fenced transaction is open. Nor is one that
    // somebody waits for: a dead holder is what has the worker come back.
    let can_be_freed = |name: &str, fence: i64| ending || !busy.contains(name) && Guard::Fence(fence).is_free();
    // Something is freed also where the looks did not come to the end: whoever does not remember how far they came would never get there. What
    // may be waited for stays for its look.
    let all_looked_at = !looks.are_spent();
    let is_to_be_freed =
        |name: &str, fence: i64| (all_looked_at || !queue::may_be_waited_for(call, name)) && can_be_freed(name, fence);
    let held = |most, skip| {
        let held = |(seat, row): (Seat, LeaseRow)| (seat, row.tid, row.fence, row.session);
        claim::held_by(sessions, most, skip).into_iter().map(held).collect()
    };
    let freed = in_pages(most, held, |held| {
        let (freed, locked): (Vec<_>, Vec<_>) = held.into_iter().partition(|((name, _), tid, fence, _)| {
            is_to_be_freed(name, *fence) && rows.lock(*tid, false) == Locked::Mine
        });
        pass.blocked |= !locked.is_empty();
        history::freed(call, freed.iter().map(|(seat, _, fence, session)| (seat, *fence, *session)), !ending);
        looked_at.extend(freed.iter().filter_map(|(.., session)| *session));
        let freed: Vec<(Seat, ItemPointerData)> = freed.into_iter().map(|(seat, tid, ..)| (seat, tid)).collect();
        release::free(call, &freed, !ending);
        for ((resource, slot), _) in &freed {
            call.seam().changed(resource, *slot);
        }
        let count = freed.len();
        pass.changed.extend(freed.into_iter().map(|(seat, _)| (seat, None)));
        Ok(count)
    })?;
    let waiters = queue::table();
    let places = |most, skip| queue::places_of(sessions, most, skip);
    // What they have claimed no successor inherits.
    let items = item::free(call, ended, most);
    pass.more |= items.more;
    pass.blocked |= items.blocked;
    let left = in_pages(most, places, |places| {
        let (left, locked): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|(_, tid)| waiters.lock(*tid, false) == Locked::Mine);
        pass.blocked |= !locked.is_empty();
        let (resources, mut places): (Vec<String>, Vec<ItemPointerData>) = left.into_iter().unzip();
        queue::leave(call, &mut places);
        for resource in &resources {
            call.seam().judge(resource);
        }
        Ok(resources.len())
    })?;
    pass.more |= freed == most || left == most;
    looked_at.extend(items.from);
    Ok(if by_lease && freed == most && left == 0 { looked_at } else { everybody() })
}
