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

use crate::call::{Call, enter, text_arg};
use crate::claim::{LeaseRow, Leases, Probe};
use crate::declaration::{self, Declaration, Kind};
use crate::error::Result;
use crate::guard::Guard;
use crate::holders::{Holder, Holders};
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
