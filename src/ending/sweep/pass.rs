//! One pass over a database.

use super::dissolve::dissolve_dead;
use super::done::{Pass, come_back_to};
use super::dropped::{end_dropped, is_of_dropped};
use super::settle::settle_sessions;
use super::waited::Looked;
use crate::base::error::Result;
use crate::base::limits;
use crate::bridge::{self, tend};
use crate::call::Call;
use crate::ending::log;
use crate::lease::candidate::HandOver;
use crate::lease::handover::{self, Seen};
use crate::lease::{grace, line, refence};
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{self, Statement, Value};
use crate::pg::table::{Key, Sight, Table};
use crate::session::{self, death, succession};
use crate::shmem::counters::{Counter, Span};
use crate::shmem::databases::BOOT;
use crate::shmem::dirty::Dirty;
use crate::shmem::word::State;
use crate::{group, item};
use pgrx::Uuid;
use pgrx::pg_sys::{INT8OID, TEXTOID, TransactionId};
use std::collections::HashSet;
use std::ffi::CStr;

static WAITED_FOR: Statement =
    Statement::reads(include_str!("../../../sql/query/sweep/waited_for.sql"), &[TEXTOID, INT8OID]);
static PREPARED: Statement = Statement::reads(include_str!("../../../sql/query/sweep/prepared.sql"), &[]);

/// The tables in which sessions leave rows, each with its index by session.
const LEFT_IN: [(&CStr, &CStr); 4] = [
    (c"_leases", c"_leases_session"),
    (c"_waiters", c"_waiters_session"),
    (c"_members", c"_members_session"),
    (c"_claims", c"_claims_session"),
];

/// Does one pass over a database. `most`: the leases that it may free or hand over. `anybody_due`: whether sessions may
/// be dead or due to be woken. `looked`: the leases of the dead that earlier passes have looked at.
pub fn pass(call: &Call, most: usize, anybody_due: bool, looked: &mut Looked) -> Result<Pass> {
    let now = clock::now();
    let mut pass = Pass::default();
    call.database.add(Counter::Sweeps, 1);
    call.shared.feed_others(call.database, now);
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
        if dead.len() > limits::MAX_DEAD {
            // Each pass begins with other sessions. So dead sessions that cannot be swept yet do not hold up the rest.
            let passes = usize::try_from(call.database.counters.get(Counter::Sweeps as usize)).unwrap_or(0);
            let first = passes * limits::MAX_DEAD % dead.len();
            dead.rotate_left(first);
            dead.truncate(limits::MAX_DEAD);
        }
        log::expired(call, &dead);
        let full = dead.len() == limits::MAX_DEAD;
        let looked_at = dissolve_dead(call, &dead, most, looked, &mut pass)?;
        tend::look_again(call, pass.changed.keys());
        dead.retain(|session| looked_at.contains(session));
        // This also notes sessions that lost no lease, but a membership, a claim, or something that a successor
        // inherited.
        call.seam().taken_from(&dead);
        let buried = bury(call, &dead, &mut pass);
        looked.forget(&buried);
        dead.retain(|session| !buried.contains(session));
        death::record(call, &dead);
        pass.more |= full && pass.ended > 0;
    }
    if anybody_due {
        call.database.blocked.set(pass.blocked && !pass.more, now);
    }
    call.database.counters.add_span(Span::Pass, clock::now().saturating_sub(now), 1);
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

/// Judges the resources in the ring that are due.
fn judge_dirty(call: &Call, now: u64, pass: &mut Pass) -> Result<()> {
    let dirty = call.shared.take_dirty(call.home.database, now, limits::MAX_HAND_OVER);
    pass.more |= dirty.len() == limits::MAX_HAND_OVER;
    let (items, dirty): (Vec<Dirty>, Vec<Dirty>) = dirty.into_iter().partition(|dirty| dirty.items);
    for queue in items {
        call.seam().told(&queue.resource);
        pass.items.insert(queue.resource);
    }
    if dirty.is_empty() {
        return Ok(());
    }
    let names: HashSet<String> = dirty.iter().map(|dirty| dirty.resource.clone()).collect();
    // The resources are out of the ring now. If this transaction fails, its abort posts them again.
    for dirty in &dirty {
        call.seam().judged(dirty);
    }
    let outcome = judge(call, names.into_iter().collect())?;
    line::leave_own(call, outcome.held);
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

/// Tends the bridges among the resources, then hands over. A bridge whose lock another process has is not busy: it
/// comes again by itself.
fn judge(call: &Call, resources: Vec<String>) -> Result<HandOver> {
    let closed = tend::tend(call, &resources);
    let mut outcome = handover::hand_over(call, resources, &Seen::new(), &|_| false)?;
    outcome.busy.retain(|resource| !closed.contains(resource));
    outcome.busy.extend(grace::tell(call, &outcome.held));
    Ok(outcome)
}

/// Does what the flags ask for: judges all resources that are waited for, and finds the sessions that have no slot or
/// no row. Returns the dead sessions.
fn look_through(call: &Call, flags: u32, now: u64, pass: &mut Pass) -> Result<Vec<Uuid>> {
    call.database.add(Counter::Rescans, 1);
    if flags & BOOT != 0 {
        refence::see_to_mark(call);
        let xid = |row: spi::Row| row.get::<TransactionId>(1);
        for xid in call.db().run(&PREPARED, vec![], xid).into_iter().flatten() {
            call.shared.watch_prepared(call.database, xid.into_inner());
        }
    }
    // Sessions are settled before waiters are served: a session may be found, or brought back, only now.
    let (dead, mut left) = settle_sessions(call, flags)?;
    let waited_for = |after: &str| {
        let values = vec![Value::Text(after), Value::Long(limits::GRANT_BATCH as i64)];
        call.db().run(&WAITED_FOR, values, |row| row.text(1))
    };
    let groups = |after: &str| group::page(call, after, limits::GRANT_BATCH);
    let bridges = |after: &str| bridge::page(call, after, limits::GRANT_BATCH);
    let sources: [&dyn Fn(&str) -> Vec<String>; 3] = [&waited_for, &groups, &bridges];
    for fetch in sources {
        let mut after = String::new();
        loop {
            let resources = fetch(&after);
            let Some(last) = resources.last() else { break };
            after.clone_from(last);
            let outcome = judge(call, resources)?;
            line::leave_own(call, outcome.held);
            pass.handed_over += outcome.granted.len();
            pass.has_granted(outcome.granted);
            left |= !come_back_to(call, &outcome.busy);
            if pass.handed_over >= limits::MAX_HAND_OVER {
                call.database.flag(flags);
                pass.more = true;
                return Ok(dead);
            }
        }
    }
    call.database.looked_through(left, now);
    Ok(dead)
}

/// Deletes the rows of dead sessions that have nothing left. Returns these sessions.
fn bury(call: &Call, dead: &[Uuid], pass: &mut Pass) -> HashSet<Uuid> {
    // The guard is tried before the tables are read: then a grant that was in flight has committed or is rolled back.
    let (mut done, blocked): (Vec<Uuid>, Vec<Uuid>) =
        dead.iter().copied().partition(|session| Guard::Grantee(*session).try_lock(Mode::Exclusive));
    let tables = LEFT_IN.map(|(table, by_session)| Table::open(table, by_session));
    let has_row = |table: &Table, session| table.scan(Sight::Latest, &[Key::Uuid(session)], |_, _| Some(())).is_some();
    done.retain(|session| !tables.iter().any(|table| has_row(table, *session)));
    pass.blocked |= !blocked.is_empty();
    // Graces are looked for after the tables are read: a lease that goes into grace meanwhile is found by one of the
    // two.
    let count = done.len();
    done.retain(|session| !succession::leaves_grace(*session));
    pass.blocked |= done.len() < count;
    if done.is_empty() {
        return HashSet::new();
    }
    // Another transaction may be changing the row: a drain, or a close that could not have G.
    let (done, changing) = session::lock_rows(done);
    pass.blocked |= changing;
    // Closed sessions have no row any more; sessions that still have one have expired.
    call.seam().count(Counter::SessionsExpired, session::delete(call, &done) as usize);
    succession::forget(call, &done);
    death::forget(call, &done);
    for session in &done {
        if let Some(at) = call.shared.find(call.home, *session) {
            call.seam().ended(at, true);
        }
    }
    pass.ended += done.len();
    done.into_iter().collect()
}
