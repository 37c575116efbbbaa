//! Taking what a look has found: free leases, those of dead sessions, and the session's own. Each step settles some of
//! the answers.

use super::grantee::{SESSIONS_FULL, holder};
use super::look::Wanted;
use crate::base::error::Result;
use crate::call::Call;
use crate::lease::answer::Answer;
use crate::lease::candidate::Candidate;
use crate::lease::row::Leases;
use crate::lease::{grace, grant, line};
use crate::pg::spi;
use crate::shmem::slots::SlotRef;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashMap;

/// The leases that one call takes for a session.
pub(super) struct Taking<'a> {
    pub call: &'a Call,
    pub me: SlotRef,
    pub leases: &'a Leases,
    pub resources: &'a [String],
    /// The resources that are not settled yet, each with its index.
    pub wanted: Vec<(usize, Wanted)>,
    /// The answer for each resource: `busy`, until a step sets another.
    pub answers: &'a mut [Answer],
}

/// The places of the session by resource, for resources where it is first in line or takes a lease over from grace.
type Places = HashMap<String, Vec<ItemPointerData>>;

impl Taking<'_> {
    /// Takes the wanted leases. Skips a free or dead one if another session is first in line for it.
    pub fn take(mut self) -> Result<()> {
        spi::require_writes("lease_acquire()")?;
        self.refuse_without_slot();
        let consumer = match holder(self.call, self.me) {
            Ok(row) => row.consumer,
            Err(refusal) => {
                for (index, _) in self.wanted {
                    self.answers[index].reason = refusal;
                }
                return Ok(());
            }
        };
        let mut places = self.wait_for_turn(&consumer);
        // If something is in the way of one permit of a semaphore, another permit may be free.
        while !self.wanted.is_empty() {
            self.grant(&consumer, &mut places);
        }
        Ok(())
    }

    /// Refuses new leases to a session that has no slot.
    fn refuse_without_slot(&mut self) {
        self.wanted.retain(|(index, want)| {
            let may = want.own || !self.me.is_stand_in();
            if !may {
                self.answers[*index].reason = SESSIONS_FULL;
            }
            may
        });
    }

    /// Refuses leases for which other sessions are in line, and settles those in grace. Returns the session's places in
    /// line for the rest.
    fn wait_for_turn(&mut self, consumer: &str) -> Places {
        let (mut line, me) = (line::first_in_line(self.call, self.names(|_| true)), self.me.session());
        if line.first.values().any(|first| first.session != me) {
            line.inherit(&line::left_by(self.call, me), me);
        }
        let mut first = line.first;
        self.wanted.retain(|(index, want)| {
            let barging = first.get(&self.resources[*index]).is_some_and(|first| first.session != me);
            if barging && !want.own {
                self.answers[*index].reason = "awaited";
            }
            want.own || !barging
        });
        self.see_to_graces(consumer);
        first.retain(|_, first| first.session == me);
        let mut places = line::places_of_first(&first);
        let taken_over = self.names(|want| want.takes_over.is_some());
        for ((resource, _), own) in line::places(&taken_over, &vec![me; taken_over.len()]) {
            places.insert(resource, own);
        }
        places
    }

    fn names(&self, which: fn(&Wanted) -> bool) -> Vec<&str> {
        let those = self.wanted.iter().filter(|(_, want)| which(want));
        those.map(|(index, _)| self.resources[*index].as_str()).collect()
    }

    /// Takes back the leases that the session released with grace. Reserves those that a predecessor released with
    /// grace.
    fn see_to_graces(&mut self, consumer: &str) {
        let Taking { call, me, leases, resources, ref mut wanted, ref mut answers } = *self;
        wanted.retain(|(index, want)| match (want.choices.first(), want.takes_over) {
            (Some((slot, Some(lease))), _) if want.takes_back => {
                if grace::take_back(call, leases, me, &resources[*index], lease) {
                    answers[*index] = Answer::granted("already_held", *slot, lease.fence, consumer);
                }
                false
            }
            (_, Some(lease)) => grace::reserve(call, &lease),
            _ => true,
        });
    }

    /// Tries to grant one choice of each resource that is still wanted.
    fn grant(&mut self, consumer: &str, places: &mut Places) {
        let Taking { call, me, leases, resources, ref mut wanted, ref mut answers } = *self;
        let candidate = |(index, want): &mut (usize, Wanted)| {
            let resource = resources[*index].clone();
            let (slot, row) = want.choices.pop()?;
            let places = places.get(&resource).cloned().unwrap_or_default();
            let (declared, gone, inherited) = (want.declared, want.gone.clone(), want.takes_over.is_some());
            Some(Candidate { resource, slot, declared, row, released: inherited, inherited, grantee: me, places, gone })
        };
        let grants = grant::grant(call, leases, wanted.iter_mut().filter_map(candidate).collect());
        let mut granted: HashMap<&str, (i32, i64)> =
            grants.iter().map(|((resource, slot), grant)| (resource.as_str(), (*slot, grant.fence))).collect();
        wanted.retain(|(index, want)| {
            let resource = &resources[*index];
            match granted.remove(resource.as_str()) {
                Some((slot, fence)) => {
                    let reason = if want.refences { "refenced" } else { "granted" };
                    answers[*index] = Answer::granted(reason, slot, fence, consumer);
                    places.remove(resource);
                    if let Some(lease) = want.takes_over {
                        grace::end(call, &lease);
                    }
                    false
                }
                None if want.choices.is_empty() => {
                    if let Some(lease) = want.takes_over {
                        grace::leave(&lease);
                    }
                    // A fenced transaction of the dead holder may be in the way. When it ends, the worker serves a
                    // session that has a place; a session without a place must ask again.
                    if places.contains_key(resource) {
                        call.seam().in_vain(resource);
                    }
                    false
                }
                None => true,
            }
        });
    }
}
