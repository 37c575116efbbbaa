//! Semaphores: a resource with several slots. Each slot is a permit, and a lease of its own.
//!
//! The row of a permit names the session that holds it, and the fence. No counter of taken permits is kept: the rows
//! are counted whose holder lives. A session has at most one permit of a semaphore. A permit that is counted free is
//! granted like any lease (see [`crate::lease::grant`]). All permits share one line.
//!
//! A semaphore that shrinks takes back no permit. While a slot beyond the number of permits is held, slots are granted
//! only under a lock on the declaration. So the count stays true during the grant, and the number of holders falls with
//! each permit that comes back. While such a slot is taken, a permit may be free only because the holder of some other
//! slot is dead, and so does not count. So the grant then records the deaths of all dead holders that do not count
//! ([`crate::session::death`]). Otherwise a restart could revive more holders than there are permits.
//!
//! Counting reads the rows of all holders. A session that has a permit is told so without a count. If a semaphore has
//! many permits, a session that has none first looks without a count:
//!
//! * If no slot beyond the permits is taken, each free slot is a permit of its own. The index of free rows finds one
//!   that has a row. Otherwise some slots that the session's id selects are tried, to find one without a row.
//! * Only a count can tell that all permits are held. After such a count, no permit lacks a row (see
//!   [`crate::shmem::surveyed`]). A permit is then free only if its row says so, or if its holder is dead. The index of
//!   free rows finds the free rows. To find a dead holder, the look checks each dead session in shared memory. If one
//!   may have a permit, all permits are counted.
//!
//! Such a look may miss a permit that an open transaction is releasing: the caller is then told `held` instead of
//! `busy`.

use super::declaration::{self, Declaration, Kind};
use super::declare;
use super::row::{self, LeaseRow, Leases, Probe};
use crate::base::error::Result;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::pg::guard::Guard;
use crate::pg::text::Text;
use crate::pg::{clock, random, transaction};
use crate::session::holders::{Holder, Holders};
use crate::session::succession;
use crate::shmem::databases::BOOT;
use crate::shmem::word::State;
use pgrx::Uuid;
use pgrx::prelude::*;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The state of a semaphore's permits.
pub struct Permits {
    /// Slots that may be granted, each with its row if it has one; at most as many as there are permits left.
    pub free: Vec<(i32, Option<LeaseRow>)>,
    /// The leases of living holders.
    pub held: Vec<(LeaseRow, Holder)>,
    /// Leases of dead holders, each with an heir that has no permit. Only the heir is granted such a lease.
    pub left: Vec<(LeaseRow, Uuid)>,
    /// Whether another transaction is changing a slot, works under a dead holder's fence, or has locked the
    /// declaration.
    pub in_flight: bool,
    /// Whether slots beyond the number of permits are taken.
    beyond: bool,
    /// Sessions to which another transaction is giving a permit.
    pub arriving: Vec<Uuid>,
    /// The dead holders, of any slot, that do not count as holders. Empty unless slots beyond the number of permits are
    /// taken.
    pub gone: Rc<[Uuid]>,
}

/// A semaphore with this many permits or fewer is always looked at by a count.
const FEW: i32 = 64;
/// The number of free rows that are read for a session, and of dead sessions that are checked for a permit. [`TRIES`]
/// slots are tried to find one without a row.
const MOST: usize = 64;
const TRIES: u64 = 16;

/// The result of a look without a count, for a session that has no permit.
pub enum Glance {
    /// Free slots, each with its row if it has one.
    Free(Vec<(i32, Option<LeaseRow>)>),
    /// Living sessions hold all permits.
    AllHeld,
    /// The permits must be counted.
    Unknown,
}

/// Looks for a free slot of a semaphore with many permits without counting its holders. `session` wants the permit;
/// `None` if it has not been opened yet.
pub fn glance(call: &Call, resource: &str, declaration: &Declaration, session: Option<Uuid>) -> Glance {
    if declaration.kind != Kind::Semaphore || declaration.slots <= FEW {
        return Glance::Unknown;
    }
    // The order matters: a permit that goes into grace meanwhile is seen by one of the two checks.
    if session.is_some_and(|session| row::may_have_any(resource, session) || succession::has_grace(session)) {
        return Glance::Unknown;
    }
    let leases = Leases::open();
    if leases.is_any_taken(resource, declaration.slots) {
        return Glance::Unknown;
    }
    let is_surveyed = call.shared.is_surveyed(call.shared.semaphore(call.home, resource, declaration.slots));
    let (rows, all) = row::free_rows(resource, MOST);
    let free: Vec<_> =
        rows.into_iter().filter(|row| row.slot < declaration.slots).map(|row| (row.slot, Some(row))).collect();
    if !free.is_empty() {
        return Glance::Free(free);
    }
    if is_surveyed {
        return if all && is_of_the_living(call, resource) { Glance::AllHeld } else { Glance::Unknown };
    }
    let bytes = session.map_or_else(random::strong, |session| *session.as_bytes());
    let first = bytes[..8].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let slots = u64::from(declaration.slots.cast_unsigned());
    // The odd factor spreads the tries over the slots.
    let mut tries = (1..=TRIES).map(|n| (first.wrapping_mul(2 * n + 1) % slots) as i32);
    let new = tries.find(|slot| !leases.has_entry(resource, *slot));
    new.map_or(Glance::Unknown, |slot| Glance::Free(vec![(slot, None)]))
}

/// Returns whether surely no dead session has a permit of a semaphore; false if a holder may have no slot in shared
/// memory.
fn is_of_the_living(call: &Call, resource: &str) -> bool {
    let database = call.database;
    // After a start there are sessions without slots. An end by a prepared transaction, or by this one, shows in rows
    // before it shows in shared memory.
    if database.flags() & BOOT != 0
        || database.without_slot.load(Ordering::Relaxed) != 0
        || call.shared.watches_prepared(database)
        || transaction::has_written()
    {
        return false;
    }
    let (mut dead, now) = (Vec::new(), clock::now());
    call.shared.each_due(now, now, |at, home, word, _| {
        if home == call.home && word.state() == State::Dead {
            dead.push(at.session());
        }
    });
    dead.len() <= MOST && !dead.into_iter().any(|session| row::may_have_any(resource, session))
}

/// Returns whether a slot that the caller releases may be handed over without a count of the permits.
pub fn is_one_of_many(resource: &str, declaration: &Declaration, slot: i32) -> bool {
    let many = declaration.kind == Kind::Semaphore && declaration.slots > FEW && slot < declaration.slots;
    many && !Leases::open().is_any_taken(resource, declaration.slots)
}

/// Counts the permits. `letting_go` returns whether this transaction releases a row.
pub fn survey(
    call: &Call,
    resource: &str,
    declaration: &Declaration,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
) -> Permits {
    let known = call.shared.semaphore(call.home, resource, declaration.slots);
    let permits = count(call, resource, declaration, letting_go);
    // A count that rests on writes of this transaction is not kept, since they may be rolled back.
    if permits.held.len() == usize::try_from(declaration.slots).unwrap_or(0)
        && declaration.slots > FEW
        && !permits.beyond
        && !permits.in_flight
        && !transaction::has_written()
    {
        let has_slot = |session: Uuid| call.shared.find(call.home, session).is_some();
        if permits.held.iter().all(|(row, _)| row.session.is_some_and(has_slot)) {
            call.shared.surveyed(known);
        }
    }
    if !permits.beyond || permits.free.is_empty() {
        permits
    } else if declaration::try_lock(declaration) {
        count(call, resource, declaration, letting_go)
    } else {
        Permits { free: Vec::new(), in_flight: true, ..permits }
    }
}

fn count(call: &Call, resource: &str, declaration: &Declaration, letting_go: &dyn Fn(&LeaseRow) -> bool) -> Permits {
    let (slots, arriving) = Leases::open().slots(resource);
    let session_of = |probe: &Probe| match probe {
        Probe::Row(row) if !letting_go(row) => row.session,
        _ => None,
    };
    let holders = Holders::of(call, slots.iter().filter_map(|(_, probe)| session_of(probe)));
    let (mut free, mut held, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    let (mut of_dead, mut gone) = (Vec::new(), Vec::new());
    let (mut taken, mut beyond) = (0, false);
    for (slot, probe) in slots {
        known.insert(slot);
        // The slot of a dead holder is not free while a fenced transaction of that holder is open.
        let fenced = |row: &LeaseRow| row.session.is_some() && !letting_go(row) && !Guard::Fence(row.fence).is_free();
        beyond |= slot >= declaration.slots && !matches!(probe, Probe::Row(row) if row.session.is_none());
        match (probe, holders.living(session_of(&probe))) {
            (Probe::Row(row), Some(holder)) => held.push((row, holder.clone())),
            (Probe::Row(row), None) if fenced(&row) => taken += 1,
            (Probe::Row(row), None) => match session_of(&probe) {
                Some(dead) => of_dead.push((row, dead)),
                None => free.extend((slot < declaration.slots).then_some((slot, Some(row)))),
            },
            (Probe::Absent, _) => (),
            (Probe::InFlight(_), _) => taken += 1,
        }
    }
    let heirs = succession::heirs(call, of_dead.iter().map(|(_, dead)| *dead));
    let has_one = |heir: Uuid| held.iter().any(|(row, who)| row.session == Some(heir) || who.fencer == Some(heir));
    let mut left = Vec::new();
    for (row, dead) in of_dead {
        match heirs.get(&dead).filter(|heir| row.slot < declaration.slots && !has_one(**heir)) {
            Some(heir) => left.push((row, *heir)),
            None => {
                gone.push(dead);
                free.extend((row.slot < declaration.slots).then_some((row.slot, Some(row))));
            }
        }
    }
    let taken_or_left = held.len() + taken + left.len();
    let room = usize::try_from(declaration.slots).unwrap_or(0).saturating_sub(taken_or_left);
    // Slots that have a row come first: a new row costs more.
    let new = (0..declaration.slots).filter(|slot| !known.contains(slot)).map(|slot| (slot, None));
    free.extend(new.take(room.saturating_sub(free.len())));
    free.truncate(room);
    if !beyond {
        gone.clear();
    }
    Permits { free, held, left, in_flight: taken > 0, beyond, arriving, gone: gone.into() }
}

#[pg_extern(schema = "eskit_lease")]
fn semaphore_create(name: Option<Text>, permits: Option<i32>) -> Result<()> {
    let shared = enter_writing("semaphore_create()")?;
    let name = text_arg("name", name)?;
    let permits = declaration::slots_arg("permits", permits)?;
    declare::declare(&Call::open(shared)?, &name, Kind::Semaphore, permits)
}

#[pg_extern(schema = "eskit_lease")]
fn semaphore_resize(name: Option<Text>, permits: Option<i32>) -> Result<()> {
    let shared = enter_writing("semaphore_resize()")?;
    let name = text_arg("name", name)?;
    let permits = declaration::slots_arg("permits", permits)?;
    let call = Call::open(shared)?;
    if declaration::lock_owned(&call, &name, Kind::Semaphore)?.slots != permits {
        declare::resize(&call, &name, permits);
        // Waiters may get more permits now.
        call.seam().judge(&name);
    }
    Ok(())
}

#[pg_extern(schema = "eskit_lease", name = "semaphore_drop")]
fn semaphore_drop_if(name: Option<Text>, missing_ok: default!(Option<bool>, "false")) -> Result<bool> {
    let shared = enter_writing("semaphore_drop()")?;
    let name = text_arg("name", name)?;
    let missing_ok = missing_ok.given("missing_ok")?;
    declare::drop_owned(&Call::open(shared)?, &name, Kind::Semaphore, missing_ok)
}

/// Serves the declaration of versions up to 0.2.0.
#[pg_extern(sql = false)]
fn semaphore_drop(name: Option<Text>) -> Result<()> {
    semaphore_drop_if(name, Some(false)).map(|_| ())
}
