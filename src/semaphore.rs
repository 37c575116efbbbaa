//! Semaphores: a resource with several slots, its permits, each of which is a lease of its own.
//!
//! Whoever is granted a permit is its holder in a row, under a fence; how many are taken is never a number that somebody keeps, but
//! the rows of living holders, counted. A session has one permit of a semaphore at most. What is counted free is granted like any lease
//! (see [`crate::grant`]), in the order of the one queue that all permits share.
//!
//! A semaphore that shrinks takes back nothing. While a slot beyond the number of permits is held, slots are granted only under a
//! lock on the declaration, so that what is counted under it stands: the number of holders then falls with each permit that comes back.
//! A permit is free then because holders are dead, whichever slots these have. So the grant records their deaths ([`crate::session::death`]):
//! a restart would else revive one more holder than there are permits.
//!
//! Counting reads the rows of all holders. Where no slot beyond the permits is taken, each free slot is a permit of its own, and one of them
//! is found without a count: by the index of free rows, or by a look at slots that are drawn by chance, for one without a row. That is
//! tried first where there are many permits, by sessions that have none. Only a count can tell that all permits are held.

use crate::call::{Call, enter, text_arg};
use crate::claim::{self, LeaseRow, Leases, Probe};
use crate::declaration::{self, Declaration, Kind};
use crate::error::Result;
use crate::guard::Guard;
use crate::holders::{Holder, Holders};
use crate::session::takeover;
use crate::spi;
use crate::text::Text;
use pgrx::Uuid;
use pgrx::prelude::*;
use std::collections::HashSet;
use std::rc::Rc;

/// The permits of a semaphore as they stand.
pub struct Permits {
    /// Slots to be had, each with its row if it has one; as many as may be granted.
    pub free: Vec<(i32, Option<LeaseRow>)>,
    /// What living holders have.
    pub held: Vec<(LeaseRow, Holder)>,
    /// Whether somebody is in the middle of taking or giving back a permit.
    pub in_flight: bool,
    /// Whether slots are taken that there are no permits for any more.
    beyond: bool,
    /// Sessions that are in the middle of getting one.
    pub arriving: Vec<Uuid>,
    /// Dead holders that had to be counted as gone for the slots to be free: of any slot, while slots are taken that there are no permits for.
    pub gone: Rc<[Uuid]>,
}

/// Semaphores of no more permits are always counted.
const FEW: i32 = 64;
/// Free rows that are offered to a session, and slots that are looked at for one without a row.
const MOST: usize = 64;
const TRIES: u64 = 16;

/// Slots of a semaphore with many permits that are free for a session, found without counting its holders. Empty where it is to be counted.
pub fn some_free(resource: &str, declaration: &Declaration, session: Uuid) -> Vec<(i32, Option<LeaseRow>)> {
    let none = Vec::new();
    if declaration.kind != Kind::Semaphore || declaration.slots <= FEW {
        return none;
    }
    // In this order: what leaves the session for its grace is seen in one of both.
    if claim::may_have_any(resource, session) || takeover::has_grace(session) {
        return none;
    }
    let leases = Leases::open();
    if leases.is_any_taken(resource, declaration.slots) {
        return none;
    }
    let rows = claim::free_rows(resource, MOST).into_iter().filter(|row| row.slot < declaration.slots);
    let free: Vec<_> = rows.map(|row| (row.slot, Some(row))).collect();
    if !free.is_empty() {
        return free;
    }
    let (first, _) = session.as_bytes().split_at(8);
    let first = first.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let slots = u64::from(declaration.slots.cast_unsigned());
    // The odd factor spreads the tries over the slots.
    let tries = (1..=TRIES).map(|n| (first.wrapping_mul(2 * n + 1) % slots) as i32);
    tries.filter(|slot| !leases.has_entry(resource, *slot)).map(|slot| (slot, None)).take(1).collect()
}

/// Whether a slot that the caller lets go of may be handed over without counting the permits.
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
    let permits = count(call, resource, declaration, letting_go);
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
    let (mut free, mut held, mut known, mut gone) = (Vec::new(), Vec::new(), HashSet::new(), Vec::new());
    let (mut taken, mut beyond) = (0, false);
    for (slot, probe) in slots {
        known.insert(slot);
        // A dead holder's fenced transaction keeps its slot.
        let fenced = |row: &LeaseRow| row.session.is_some() && !letting_go(row) && !Guard::Fence(row.fence).is_free();
        beyond |= slot >= declaration.slots && !matches!(probe, Probe::Row(row) if row.session.is_none());
        match (probe, holders.living(session_of(&probe))) {
            (Probe::Row(row), Some(holder)) => held.push((row, holder.clone())),
            (Probe::Row(row), None) if fenced(&row) => taken += 1,
            (Probe::Row(row), None) => {
                gone.extend(row.session.filter(|_| !letting_go(&row)));
                free.extend((slot < declaration.slots).then_some((slot, Some(row))));
            }
            (Probe::Absent, _) => (),
            (Probe::InFlight(_), _) => taken += 1,
        }
    }
    let room = usize::try_from(declaration.slots).unwrap_or(0).saturating_sub(held.len() + taken);
    // Slots that have a row first: a new row costs more.
    let new = (0..declaration.slots).filter(|slot| !known.contains(slot)).map(|slot| (slot, None));
    free.extend(new.take(room.saturating_sub(free.len())));
    free.truncate(room);
    if !beyond {
        gone.clear();
    }
    Permits { free, held, in_flight: taken > 0, beyond, arriving, gone: gone.into() }
}

#[pg_extern(schema = "eskit_lease")]
fn semaphore_create(name: Option<Text>, permits: Option<i32>) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("semaphore_create()")?;
    let name = text_arg("name", name)?;
    let permits = declaration::slots_arg("permits", permits)?;
    declaration::declare(&Call::open(shared)?, &name, Kind::Semaphore, permits)
}

#[pg_extern(schema = "eskit_lease")]
fn semaphore_resize(name: Option<Text>, permits: Option<i32>) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("semaphore_resize()")?;
    let name = text_arg("name", name)?;
    let permits = declaration::slots_arg("permits", permits)?;
    let call = Call::open(shared)?;
    if declaration::lock_owned(&call, &name, Kind::Semaphore)?.slots != permits {
        declaration::resize(&call, &name, permits);
        // There may be more for those who wait.
        call.seam().judge(&name);
    }
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn semaphore_drop(name: Option<Text>) -> Result<()> {
    let shared = enter()?;
    spi::require_writes("semaphore_drop()")?;
    let name = text_arg("name", name)?;
    let call = Call::open(shared)?;
    declaration::lock_owned(&call, &name, Kind::Semaphore)?;
    declaration::undeclare(&call, &name, Kind::Semaphore)
}
