//! Sweeping: one bounded pass over what a database has to have judged or taken away. The worker runs it, and so may an administrator.
//!
//! Nothing here is needed for an answer to be right: a lease of a dead session is free in every query. A pass makes hand-overs prompt
//! and takes dead rows away: first what is waited for, then the other leases and the places of dead sessions, the session's row
//! last, and only under its G lock, held exclusively: then nobody is granting to it, and no lease can come after.
//!
//! What others have locked is skipped and tried again later. A pass is bounded by leases, not by sessions.

pub mod waited;

use crate::bridge::{self, tend};
use crate::call::{Call, enter};
use crate::claim::{LeaseRow, Leases, Seat};
use crate::error::{Error, Result};
use crate::grant::Grant;
use crate::guard::{Guard, Mode};
use crate::handover::{self, HandOver, Seen};
use crate::liveness::clock;
use crate::liveness::databases::{BOOT, Counter, REVISE};
use crate::liveness::dirty::Dirty;
use crate::liveness::map::Opening;
use crate::liveness::slots::{Home, SlotRef};
use crate::liveness::word::{State, Word};
use crate::retention::{self, DoneUntil};
use crate::session::death;
use crate::session::takeover::{self, Inherited};
use crate::spi::{self, Statement, Value};
use crate::table::Locked;
use crate::{catalog, grant, group, history, item, queue, release, row, session};
use pgrx::Uuid;
use pgrx::pg_sys::{self, INT8OID, ItemPointerData, TEXTOID, TransactionId, UUIDARRAYOID};
use pgrx::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use waited::{Looked, Looks};

static HELD: Statement =
    Statement::reads(include_str!("../../sql/query/sweep/held.sql"), &[UUIDARRAYOID, INT8OID, INT8OID]);
static CLEAN: Statement = Statement::reads(include_str!("../../sql/query/sweep/clean.sql"), &[UUIDARRAYOID]);
static ALL_SESSIONS: Statement = Statement::reads(include_str!("../../sql/query/sweep/all_sessions.sql"), &[]);
static STRAYS: Statement = Statement::reads(include_str!("../../sql/query/sweep/strays.sql"), &[INT8OID]);
static WAITED_FOR: Statement =
    Statement::reads(include_str!("../../sql/query/sweep/waited_for.sql"), &[TEXTOID, INT8OID]);
static PREPARED: Statement = Statement::reads(include_str!("../../sql/query/sweep/prepared.sql"), &[]);

/// Leases handed over in one transaction: each takes a lock on its new holder's session.
pub const MAX_HAND_OVER: usize = 1_000;
/// Dead sessions that one pass looks at.
const MAX_DEAD: usize = 1_000;
/// Rows in somebody's hands that one pass looks beyond.
const MAX_PASSED_OVER: usize = 20_000;

/// What one pass has done.
#[derive(Default)]
pub struct Pass {
    /// Sessions whose last row has been taken away.
    pub ended: usize,
    pub handed_over: usize,
    /// Slots whose owner changed, in this pass, which knows what it has granted, or in a transaction that posted them.
    pub changed: BTreeMap<Seat, Option<Grant>>,
    /// Queues in which work items have become free for somebody who waited for them.
    pub items: HashSet<String>,
    /// Whether there is more to do at once.
    pub more: bool,
    /// Whether something was in somebody's hands and is to be tried again soon.
    pub blocked: bool,
    /// Whether the whole database has been looked through.
    pub looked_through: bool,
}

impl Pass {
    fn has_granted(&mut self, granted: HashMap<Seat, Grant>) {
        self.changed.extend(granted.into_iter().map(|(seat, grant)| (seat, Some(grant))));
    }
}

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
fn dissolve_into(
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
    let limits =
        |most: usize, skip: usize| vec![Value::Uuids(sessions), Value::Long(most as i64), Value::Long(skip as i64)];
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
        let room = most - handed_over;
        let waited = looked.next(call, sessions, room, &mut looks);
        let all = waited.len() < room && !looks.are_spent();
        for (_, holder, _) in &waited {
            // They are dead for good by the end of this pass: buried, or recorded.
            if looked_at.insert(*holder) && !ending {
                call.seam().taken_from(*holder);
            }
        }
        let seen: Seen = waited.into_iter().map(|(resource, _, tid)| (resource, tid)).collect();
        let outcome = handover::hand_over(call, seen.keys().cloned().collect(), &seen, &letting_go)?;
        // With one permit there may be more to be handed over than was asked for.
        handed_over = most.min(handed_over + outcome.granted.len());
        pass.has_granted(outcome.granted);
        pass.blocked |= !outcome.busy.is_empty();
        if !ending && !come_back_to(call, &outcome.busy) {
            looked.forget(sessions);
        }
        busy.extend(outcome.busy);
        if all {
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
    if !ending {
        for dead in ended {
            call.seam().taken_from(*dead);
        }
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
        let held = |row: spi::Row| ((row.text(1), row.int(2)), row.tid(3), row.long(4), row.get::<Uuid>(5));
        call.db().run(&HELD, limits(most, skip), held)
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
    let places = |most, skip| queue::places_of(call.db(), sessions, most, skip);
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

/// One pass over a database. `most`: leases freed or handed over; `anybody_due`: whether it is worth looking for sessions that are dead, or
/// are to be woken; `looked`: at which leases of the dead earlier passes have looked.
pub fn pass(call: &Call, most: usize, anybody_due: bool, looked: &mut Looked) -> Result<Pass> {
    let now = clock::now();
    let mut pass = Pass::default();
    call.database.add(Counter::Sweeps, 1);
    if anybody_due {
        pass.items = item::announce_due(call, now);
    }
    let flags = call.database.take_flags(now);
    let mut dead = if anybody_due { dead_sessions(call, now) } else { Vec::new() };
    if flags != 0 {
        pass.looked_through = true;
        call.seam().flags(flags);
        dead.extend(look_through(call, flags, now, &mut pass)?);
    }
    judge_dirty(call, now, &mut pass)?;
    if !dead.is_empty() {
        if dead.len() > MAX_DEAD {
            // Others begin with other ones, so that those that nothing can be done for are not in the way of the rest.
            let passes = usize::try_from(call.database.counter(Counter::Sweeps as usize)).unwrap_or(0);
            let first = passes * MAX_DEAD % dead.len();
            dead.rotate_left(first);
            dead.truncate(MAX_DEAD);
        }
        let full = dead.len() == MAX_DEAD;
        let looked_at = dissolve_into(call, &dead, most, false, looked, &mut pass)?;
        tend::look_again(call, pass.changed.keys());
        dead.retain(|session| looked_at.contains(session));
        let buried = bury(call, &dead, &mut pass);
        looked.forget(&buried);
        dead.retain(|session| !buried.contains(session));
        death::record(call, &dead);
        pass.more |= full && pass.ended > 0;
    }
    if anybody_due {
        call.database.blocked.set(pass.blocked && !pass.more, now);
    }
    Ok(pass)
}

fn dead_sessions(call: &Call, now: u64) -> Vec<Uuid> {
    let (mut dead, mut of_dropped) = (Vec::new(), Vec::new());
    call.shared.each_due(now, now, |at, home, word, _| {
        if home == call.home && word.state() == State::Dead {
            dead.push(at.session());
        } else if is_of_dropped(call, home, word) {
            of_dropped.push(at);
        }
    });
    end_dropped(call, of_dropped);
    dead
}

/// Whether a slot is that of a session of an extension that was dropped here.
fn is_of_dropped(call: &Call, home: Home, word: Word) -> bool {
    home.database == call.home.database && home.table != call.home.table && word.state() != State::Gone
}

/// Ends sessions of an extension that was dropped, which have no rows any more; if it was by this very transaction, once that is committed.
fn end_dropped(call: &Call, of_dropped: Vec<SlotRef>) {
    for at in of_dropped {
        if !call.shared.being_opened(at) {
            call.seam().ended(at, true);
        }
    }
}

/// Judges the resources in the ring that are due.
fn judge_dirty(call: &Call, now: u64, pass: &mut Pass) -> Result<()> {
    let dirty = call.shared.take_dirty(call.home.database, now, MAX_HAND_OVER);
    pass.more |= dirty.len() == MAX_HAND_OVER;
    let (items, dirty): (Vec<Dirty>, Vec<Dirty>) = dirty.into_iter().partition(|dirty| dirty.items);
    for queue in items {
        call.seam().told(&queue.resource);
        pass.items.insert(queue.resource);
    }
    if dirty.is_empty() {
        return Ok(());
    }
    let names: HashSet<String> = dirty.iter().map(|dirty| dirty.resource.clone()).collect();
    // They are out of the ring: should this transaction fail, its abort posts them again.
    for dirty in &dirty {
        call.seam().judged(&dirty.resource, dirty.changed);
    }
    let outcome = judge(call, names.into_iter().collect())?;
    queue::leave_own(call, outcome.held);
    let mut left = false;
    for dirty in dirty {
        if outcome.busy.contains(&dirty.resource) {
            left |= !call.shared.post_retry(call.database, &dirty, now);
        } else if let Some(slot) = dirty.changed {
            pass.changed.entry((dirty.resource, slot)).or_default();
        }
    }
    if left {
        call.database.look_through_later(now);
    }
    pass.handed_over += outcome.granted.len();
    pass.has_granted(outcome.granted);
    Ok(())
}

/// Hands over, and sees to the bridges among the resources first. Those of which the lock is not to be had are not busy: they come again by themselves.
fn judge(call: &Call, resources: Vec<String>) -> Result<HandOver> {
    let closed = tend::tend(call, &resources);
    let mut outcome = handover::hand_over(call, resources, &Seen::new(), &|_| false)?;
    outcome.busy.retain(|resource| !closed.contains(resource));
    Ok(outcome)
}

/// What the flags ask for: judges all that is waited for, finds the sessions that have no slot or no row. Gives those that are dead.
fn look_through(call: &Call, flags: u32, now: u64, pass: &mut Pass) -> Result<Vec<Uuid>> {
    call.database.add(Counter::Rescans, 1);
    if flags & BOOT != 0 {
        let xid = |row: spi::Row| row.get::<TransactionId>(1).unwrap_or(pg_sys::InvalidTransactionId);
        for xid in call.db().run(&PREPARED, vec![], xid) {
            call.shared.watch_prepared(call.database, xid.into_inner());
        }
    }
    // First who lives, then who is next: a session may only now be found, or be brought back.
    let (dead, mut left) = settle_sessions(call, flags)?;
    let waited_for = |after: &str| {
        let values = vec![Value::Text(after), Value::Long(grant::BATCH as i64)];
        call.db().run(&WAITED_FOR, values, |row| row.text(1))
    };
    let groups = |after: &str| group::page(call, after, grant::BATCH);
    let bridges = |after: &str| bridge::page(call, after, grant::BATCH);
    let sources: [&dyn Fn(&str) -> Vec<String>; 3] = [&waited_for, &groups, &bridges];
    for fetch in sources {
        let mut after = String::new();
        loop {
            let resources = fetch(&after);
            let Some(last) = resources.last() else { break };
            after.clone_from(last);
            let outcome = judge(call, resources)?;
            queue::leave_own(call, outcome.held);
            pass.handed_over += outcome.granted.len();
            pass.has_granted(outcome.granted);
            left |= !come_back_to(call, &outcome.busy);
            if pass.handed_over >= MAX_HAND_OVER {
                call.database.flag(flags);
                pass.more = true;
                return Ok(dead);
            }
        }
    }
    call.database.looked_through(left, now);
    Ok(dead)
}

/// Brings slots and rows together again, after a restart or the end of a prepared transaction. Gives the dead; and whether somebody else
/// may have stood in the way, so that it is to be done again later.
fn settle_sessions(call: &Call, flags: u32) -> Result<(Vec<Uuid>, bool)> {
    let sessions = call.db().run(&ALL_SESSIONS, vec![], |row| row.uuid(1));
    let (mut dead, mut left) = (Vec::new(), false);
    for chunk in sessions.chunks(grant::BATCH) {
        for row in session::rows(chunk) {
            // Sessions of before the restart get their slot here, if nobody has needed it yet.
            match call.slot_of(&row) {
                // No slot is free: the session lives by its row for now, and is found again by whoever asks for it.
                Err(_) => (),
                // It was swept before it had a row.
                Ok(Some(at)) if call.shared.look(at).is_none_or(|standing| standing.state == State::Gone) => {
                    dead.push((row.session, row.role, row.ttl_ms));
                }
                Ok(Some(at)) => {
                    left |= !thaw(call, at) | !prove(call, at, flags);
                    // It may have been granted something by a commit of which only that is known, or, after a start, not even that.
                    if flags & REVISE != 0 || flags & BOOT != 0 && row.boot_id != call.shared.boot_id() {
                        call.shared.bump(at);
                    }
                }
                Ok(None) => dead.push((row.session, row.role, row.ttl_ms)),
            }
        }
    }
    end_orphans(call, &sessions.into_iter().collect());
    death::tidy(call);
    dead.extend(call.db().run(&STRAYS, vec![Value::Long(MAX_DEAD as i64)], |row| (row.uuid(1), 0, 0)));
    // Each gets a dead slot, so that it is come back to if it is in somebody's hands now. A tombstone does not do that.
    for (session, role, ttl_ms) in &dead {
        left |= call.shared.find(call.home, *session).is_some_and(|at| is_in_state(call, at, State::Gone));
        let (deadline, private, opened_by) = (clock::now(), false, 0);
        let opening =
            Opening { session: *session, role: *role, ttl_ms: *ttl_ms, private, deadline, opened_by, unproven: 0 };
        // Without a free slot there is the next look-through.
        drop(call.shared.enter(call.home, opening));
    }
    Ok((dead.into_iter().map(|(session, ..)| session).collect(), left))
}

/// Has what was in somebody's hands judged again. False if there is no room to note it.
fn come_back_to(call: &Call, busy: &HashSet<String>) -> bool {
    let now = clock::now();
    busy.iter().fold(true, |noted, resource| {
        let dirty = Dirty { resource: resource.clone(), changed: None, backoff_ms: 0, items: false };
        call.shared.post_retry(call.database, &dirty, now) && noted
    })
}

fn is_in_state(call: &Call, at: SlotRef, state: State) -> bool {
    call.shared.look(at).is_some_and(|standing| standing.state == state)
}

/// Brings a session back whose end was prepared and has been rolled back: it is frozen, nobody holds the guard that its close holds, and
/// nobody is deleting its row, as a take-over does that could not have the guard. False where that cannot be told yet: PostgreSQL lets go
/// of the guard after all can see that the transaction has ended.
fn thaw(call: &Call, at: SlotRef) -> bool {
    if !is_in_state(call, at, State::Frozen) {
        return true;
    }
    let end = call.fencer(at);
    if !end.try_lock(Mode::Shared) {
        return false;
    }
    let (_, deleting) = session::lock_rows(vec![at.session()]);
    if !deleting && session::row(at.session()).is_some() {
        call.shared.thaw(at);
    }
    end.unlock(Mode::Shared);
    !deleting
}

/// Has a session vouched for again, from the next confirmation on, to which prepared transactions had granted something, once all of these
/// have ended. False where that cannot be told yet, as above.
fn prove(call: &Call, at: SlotRef, flags: u32) -> bool {
    if !call.shared.is_promised(at) {
        return true;
    }
    let promised = Guard::Promised(at.session());
    // While this is held nothing more is prepared that grants to it.
    let ended = promised.try_lock(Mode::Shared);
    if ended {
        call.shared.unproven_since_prepared(at);
        promised.unlock(Mode::Shared);
    }
    // Others may be prepared for long; when they end this is done again anyhow.
    ended || flags & REVISE == 0 && call.shared.watches_prepared(call.database)
}

/// Ends the sessions that have a slot and no row, once the transaction that opened them has ended.
fn end_orphans(call: &Call, with_row: &HashSet<Uuid>) {
    let (mut orphans, mut of_dropped) = (Vec::new(), Vec::new());
    call.shared.each(clock::now(), |at, home, word| {
        let living = matches!(word.state(), State::Alive | State::Frozen);
        if home == call.home && living && !with_row.contains(&at.session()) {
            orphans.push(at);
        } else if is_of_dropped(call, home, word) {
            of_dropped.push(at);
        }
    });
    end_dropped(call, of_dropped);
    for at in orphans {
        // A session opened and committed since the rows were read has its row now.
        if !call.shared.being_opened(at) && session::row(at.session()).is_none() {
            call.seam().ended(at, false);
        }
    }
}

/// Takes away the rows of dead sessions that have nothing left. Which these were.
fn bury(call: &Call, dead: &[Uuid], pass: &mut Pass) -> HashSet<Uuid> {
    // Before they are looked at: a grant that was in flight is committed then, or comes to nothing.
    let (done, blocked): (Vec<Uuid>, Vec<Uuid>) =
        dead.iter().copied().partition(|session| Guard::Grantee(*session).try_lock(Mode::Exclusive));
    let done = call.db().run(&CLEAN, vec![Value::Uuids(&done)], |row| row.uuid(1));
    pass.blocked |= !blocked.is_empty();
    if done.is_empty() {
        return HashSet::new();
    }
    // Somebody may be changing the row: a drain, or a close that could not have G.
    let (done, changing) = session::lock_rows(done);
    pass.blocked |= changing;
    // Closed sessions have no row any more; those that still have one have expired.
    call.database.add(Counter::SessionsExpired, session::delete(call.db(), &done));
    takeover::forget(call, &done);
    death::forget(call, &done);
    for session in &done {
        if let Some(at) = call.shared.find(call.home, *session) {
            call.seam().ended(at, true);
        }
    }
    pass.ended += done.len();
    done.into_iter().collect()
}

row::composite! {
    /// What a sweep has done.
    Swept = "eskit_lease.sweep_result" {
        ended: i32,
        handed_over: i32,
        more: bool,
    }
}

#[pg_extern(schema = "eskit_lease")]
fn session_sweep(max_leases: default!(Option<i32>, "1000")) -> Result<Swept> {
    let shared = enter()?;
    spi::require_writes("session_sweep()")?;
    let max_leases = max_leases.ok_or(Error::Null("max_leases"))?;
    let most = usize::try_from(max_leases).ok().filter(|most| (1..=100_000).contains(most)).ok_or(Error::Argument {
        argument: "max_leases",
        given: max_leases.into(),
        min: 1,
        max: 100_000,
    })?;
    // As the worker does: else sessions of an extension made meanwhile would be taken for those of one that was dropped.
    catalog::lock_extension();
    let call = Call::open(shared)?;
    item::expect_copies(&call);
    let mut pass = pass(&call, most, true, &mut Looked::default())?;
    let now = clock::now();
    pass.more |= retention::is_time(call.database, now, pass.looked_through)
        && retention::retire(&call, now, most, pass.looked_through, &mut DoneUntil::default());
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let more = pass.more || pass.blocked;
    Ok(Swept { ended: count(pass.ended), handed_over: count(pass.handed_over), more })
}
