//! Semaphores: a resource with several slots. Each slot is a permit, and a lease of its own.
//!
//! A session that is granted a permit is its holder in a row, under a fence. The number of permits taken is kept
//! nowhere: the rows of living holders are counted. A session has at most one permit of a semaphore. A permit that is
//! counted free is granted like any lease (see [`crate::lease::grant`]), in the order of the one line that all permits
//! share.
//!
//! A semaphore that shrinks takes back nothing. While a slot beyond the number of permits is held, slots are granted
//! only under a lock on the declaration, so that what is counted under it stands: the number of holders then falls
//! with each permit that comes back. A permit is free then because holders are dead, whichever slots these have. So
//! the grant records their deaths ([`crate::session::death`]): a restart would else revive one more holder than there
//! are permits.
//!
//! Counting reads the rows of all holders. Where there are many permits a session that has none looks first, without a
//! count:
//!
//! * Where no slot beyond the permits is taken, each free slot is a permit of its own. It is found by the index of free
//!   rows, or by a look at slots that are drawn by chance, for one without a row.
//! * That all are held only a count can tell. Once one has told it there is no permit without a row (see
//!   [`crate::shmem::surveyed`]), so that one is free only where its row says so, which the index tells, or where its
//!   holder is dead: dead sessions are looked for in shared memory, and each for a permit. Where one of them has a
//!   permit, or there is a doubt, all are counted.
//!
//! A refusal that rests on this may miss what is just being released; its caller is told `held`, and not `busy`.

use super::declaration::{self, Declaration, Kind};
use super::declare;
use super::row::{self, LeaseRow, Leases, Probe};
use crate::base::error::Result;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::pg::guard::Guard;
use crate::pg::text::Text;
use crate::pg::{clock, transaction};
use crate::session::holders::{Holder, Holders};
use crate::session::succession;
use crate::shmem::databases::BOOT;
use crate::shmem::word::State;
use pgrx::Uuid;
use pgrx::prelude::*;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The permits of a semaphore as they stand.
pub struct Permits {
    /// Slots to be had, each with its row if it has one; as many as may be granted.
    pub free: Vec<(i32, Option<LeaseRow>)>,
    /// What living holders have.
    pub held: Vec<(LeaseRow, Holder)>,
    /// Leases of dead holders, each with the living successor that has no permit. No other session is granted it.
    pub left: Vec<(LeaseRow, Uuid)>,
    /// Whether another transaction is taking or giving back a permit.
    pub in_flight: bool,
    /// Whether slots are taken that there are no permits for any more.
    beyond: bool,
    /// Sessions that another transaction is giving a permit.
    pub arriving: Vec<Uuid>,
    /// Dead holders that had to be counted as gone for the slots to be free: of any slot, while slots are taken that
    /// there are no permits for.
    pub gone: Rc<[Uuid]>,
}

/// Semaphores of no more permits are always counted.
const FEW: i32 = 64;
/// Free rows that are offered to a session, and slots that are looked at for one without a row.
const MOST: usize = 64;
const TRIES: u64 = 16;

/// What a look without a count finds, for a session that has no permit.
pub enum Glance {
    /// Slots that are free, each with its row if it has one.
    Free(Vec<(i32, Option<LeaseRow>)>),
    /// Living sessions have all permits.
    AllHeld,
    /// The permits must be counted.
    Unknown,
}

/// Looks for a free slot of a semaphore with many permits without counting its holders.
pub fn glance(call: &Call, resource: &str, declaration: &Declaration, session: Uuid) -> Glance {
    if declaration.kind != Kind::Semaphore || declaration.slots <= FEW {
        return Glance::Unknown;
    }
    // In this order: what leaves the session for its grace is seen in one of both.
    if row::may_have_any(resource, session) || succession::has_grace(session) {
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
    let (first, _) = session.as_bytes().split_at(8);
    let first = first.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let slots = u64::from(declaration.slots.cast_unsigned());
    // The odd factor spreads the tries over the slots.
    let mut tries = (1..=TRIES).map(|n| (first.wrapping_mul(2 * n + 1) % slots) as i32);
    let new = tries.find(|slot| !leases.has_entry(resource, *slot));
    new.map_or(Glance::Unknown, |slot| Glance::Free(vec![(slot, None)]))
}

/// Returns whether no dead session has a permit of a semaphore, all holders having slots.
fn is_of_the_living(call: &Call, resource: &str) -> bool {
    let database = call.database;
    // After a start there are sessions without slots. The commit of a prepared close is seen in rows first, as what
    // this transaction has ended.
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

/// Returns whether a slot that the caller lets go of may be handed over without counting the permits.
pub fn is_one_of_many(resource: &str, declaration: &Declaration, slot: i32) -> bool {
    let many = declaration.kind == Kind::Semaphore && declaration.slots > FEW && slot < declaration.slots;
    many && !Leases::open().is_any_taken(resource, declaration.slots)
}

/// Counts the permits. `letting_go` says of a row that this transaction releases it.
pub fn survey(
    call: &Call,
    resource: &str,
    declaration: &Declaration,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
) -> Permits {
    let known = call.shared.semaphore(call.home, resource, declaration.slots);
    let permits = count(call, resource, declaration, letting_go);
    // What this transaction has written may be undone.
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
        // A dead holder's fenced transaction keeps its slot.
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
    // Slots that have a row first: a new row costs more.
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
        // There may be more for those who wait.
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

/// As versions up to 0.2.0 declare it.
#[pg_extern(sql = false)]
fn semaphore_drop(name: Option<Text>) -> Result<()> {
    semaphore_drop_if(name, Some(false)).map(|_| ())
}
