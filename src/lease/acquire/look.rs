//! The look before an acquire: who holds a resource, and what the session may get of it. A look locks no lease.

use crate::base::error::Result;
use crate::call::Call;
use crate::lease::answer::Answer;
use crate::lease::declaration::{self, Declaration, Kind};
use crate::lease::refence;
use crate::lease::row::{self, LeaseRow, Leases, Probe};
use crate::lease::semaphore::{self, Glance};
use crate::session::holders::{Holder, Holders};
use crate::session::succession;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use std::rc::Rc;

/// The result of a look at a resource.
pub(super) enum Look {
    Answer(Answer),
    Wanted(Wanted),
}

impl Look {
    /// Returns whether the session has the lease already, has it in grace, or inherits it.
    pub fn is_own(&self) -> bool {
        match self {
            Look::Answer(answer) => answer.is_granted(),
            Look::Wanted(want) => want.own,
        }
    }
}

/// What a session may get of a resource.
#[derive(Default)]
pub(super) struct Wanted {
    pub declared: Option<(Kind, i32)>,
    /// Slots that are free, that a dead session holds, that this session holds and gets a new fence for, or that are in
    /// grace. The last of the list is tried first.
    pub choices: Vec<(i32, Option<LeaseRow>)>,
    /// Whether the session holds the lease already, has it in grace, or inherits it from a predecessor. The line does
    /// not matter then.
    pub own: bool,
    /// Whether the lease is in grace of this session, which takes it back under the fence that the lease has.
    pub takes_back: bool,
    /// The present row of a lease in grace that this session gets under a new fence.
    pub takes_over: Option<LeaseRow>,
    /// Whether this session has the lease already, or in its own grace, under a fence of a former history (see
    /// [`refence`]).
    pub refences: bool,
    /// The dead sessions whose deaths made the choices free, as in [`crate::lease::semaphore::Permits`].
    pub gone: Rc<[Uuid]>,
}

/// Looks at an exclusive lease.
pub(super) fn look_at_lease(call: &Call, me: SlotRef, probe: &Probe, holder: Option<&Holder>) -> Look {
    match (probe, holder) {
        (Probe::InFlight(_), _) => Look::Answer(Answer::refused("busy")),
        (Probe::Absent, _) => Look::Wanted(Wanted { choices: vec![(0, None)], ..Wanted::default() }),
        (Probe::Row(row), Some(holder)) => {
            look_at_own(call, me, row, holder).unwrap_or_else(|| Look::Answer(Answer::held_by(holder)))
        }
        (Probe::Row(row), None) => {
            let heir = row.session.and_then(|dead| succession::heir(call, dead));
            let own = heir == Some(me.session());
            if heir.is_some() && !own {
                return Look::Answer(Answer::refused("awaited"));
            }
            Look::Wanted(Wanted { choices: vec![(0, Some(*row))], own, ..Wanted::default() })
        }
    }
}

/// Looks at a lease of a living holder. Returns `None` unless this session is the holder, or the holder is a private
/// session that keeps the lease in grace for this session.
fn look_at_own(call: &Call, me: SlotRef, row: &LeaseRow, holder: &Holder) -> Option<Look> {
    let in_grace = holder.grace_of == Some(me.session());
    if row.session != Some(me.session()) && !in_grace {
        return None;
    }
    let is_current = refence::is_current(call, row);
    if !in_grace && is_current {
        return Some(Look::Answer(Answer::granted("already_held", row.slot, row.fence, &holder.consumer)));
    }
    // After a take-over, the process of the former session may still work under the fence.
    let let_go = !in_grace || holder.fencer == Some(me.session());
    let takes_back = in_grace && is_current && let_go;
    Some(Look::Wanted(Wanted {
        choices: vec![(row.slot, Some(*row))],
        own: true,
        takes_back,
        takes_over: (in_grace && !takes_back).then_some(*row),
        refences: !is_current && let_go,
        ..Wanted::default()
    }))
}

/// Looks at the permit that the session holds, without counting the others.
fn look_at_own_permit(call: &Call, me: SlotRef, resource: &str, declaration: &Declaration) -> Option<Look> {
    if declaration.kind != Kind::Semaphore {
        return None;
    }
    let slot = row::some_of_session(resource, me.session(), 1).pop()?.slot;
    // Another transaction may be releasing it.
    let Probe::Row(row) = Leases::open().probe(resource, slot) else { return None };
    if row.session != Some(me.session()) {
        return None;
    }
    look_at_own(call, me, &row, Holders::of(call, row.session.into_iter()).living(row.session)?)
}

/// Looks at the permits of a semaphore, or at the lease of a bridge.
pub(super) fn look_at_permits(call: &Call, me: SlotRef, resource: &str, declaration: &Declaration) -> Result<Look> {
    declaration::require_leasable(resource, declaration)?;
    let declared = Some((declaration.kind, declaration.slots));
    let spread = |mut choices: Vec<(i32, Option<LeaseRow>)>| {
        // Sessions that ask at the same time usually begin with different permits. While the same permits are free, a
        // session always begins with the same one.
        choices.sort_unstable_by_key(|(slot, _)| *slot);
        let first = me.session().as_bytes().iter().fold(0, |sum, byte| sum + usize::from(*byte)) % choices.len();
        choices.rotate_left(first);
        choices
    };
    let of_declared = |own| match own {
        Look::Wanted(want) => Look::Wanted(Wanted { declared, ..want }),
        answer => answer,
    };
    if let Some(own) = look_at_own_permit(call, me, resource, declaration) {
        return Ok(of_declared(own));
    }
    match semaphore::glance(call, resource, declaration, Some(me.session())) {
        Glance::Free(free) => return Ok(Look::Wanted(Wanted { declared, choices: spread(free), ..Wanted::default() })),
        Glance::AllHeld => return Ok(Look::Answer(Answer::refused("held"))),
        Glance::Unknown => (),
    }
    let permits = semaphore::survey(call, resource, declaration, &|_| false);
    // A session's own permit comes first, so it gets no second one out of grace.
    let mine = permits.held.iter().find(|(row, _)| row.session == Some(me.session()));
    // The session's own permit in grace comes before a predecessor's; the session may not have both.
    let let_go = permits.held.iter().find(|(_, who)| who.fencer == Some(me.session()));
    if let Some(own) =
        mine.into_iter().chain(let_go).chain(&permits.held).find_map(|(row, who)| look_at_own(call, me, row, who))
    {
        return Ok(of_declared(own));
    }
    let (is_bridge, is_arriving) = (declaration.kind == Kind::Bridge, permits.arriving.contains(&me.session()));
    let left_to_me = permits.left.iter().find(|(_, heir)| *heir == me.session() && !is_bridge && !is_arriving);
    if let Some((row, _)) = left_to_me {
        let choices = vec![(row.slot, Some(*row))];
        return Ok(Look::Wanted(Wanted { declared, choices, own: true, ..Wanted::default() }));
    }
    if permits.free.is_empty() || is_arriving {
        return Ok(Look::Answer(match permits.held.first() {
            _ if permits.in_flight => Answer::refused("busy"),
            Some((_, holder)) if is_bridge => Answer::held_by(holder),
            None if is_bridge => Answer::refused("bridged"),
            _ if !permits.left.is_empty() => Answer::refused("awaited"),
            _ => Answer::refused("held"),
        }));
    }
    if is_bridge {
        return Ok(Look::Answer(Answer::refused("bridged")));
    }
    Ok(Look::Wanted(Wanted { declared, choices: spread(permits.free), gone: permits.gone, ..Wanted::default() }))
}
