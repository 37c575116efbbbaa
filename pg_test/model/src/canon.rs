//! States that differ only in names count as one. Sessions are all alike, and so are resources, so their numbers may be
//! exchanged. Of fences and of places in a line only the order matters. And facts that no process can see any more are
//! forgotten.

use crate::handover::fences;
use crate::set::Set;
use crate::state::{CLIENTS, Fact, Lease, Phase, RESOURCES, Row, SESSIONS, State, Word};
use crate::system::System;

/// Returns the state that stands for all states of its kind.
pub fn canonical(mut state: State, system: &System) -> State {
    forget(&mut state, system.reading);
    for r in 0..RESOURCES {
        renumber_fences(&mut state, r);
        renumber_places(&mut state, r);
    }
    exchange_resources(&mut state, system);
    exchange_sessions(&mut state, system);
    state
}

fn forget(state: &mut State, reads: bool) {
    for session in &mut state.sessions {
        // A row's own deadline matters only for a session without a slot, or for a process that would make one.
        if session.word != Word::Free && !session.reading && !reads {
            (session.old, session.past) = (false, false);
        }
        if session.row == Fact::Absent && matches!(session.word, Word::Gone | Word::Free) && !session.reading {
            (session.old, session.past) = (false, false);
        }
    }
    // One rescan of the database serves all reasons for a rescan.
    state.rescan &= !state.boot;
    state.ended_prepared &= !state.boot && !state.rescan;
}

fn renumber_fences(state: &mut State, r: usize) {
    let mut known = [false; 32];
    fences(state, r).for_each(|fence| known[usize::from(fence)] = true);
    let new = |fence: u8| (1..=usize::from(fence)).filter(|fence| known[*fence]).count() as u8;
    let new_row = |row: Row| Row { fence: new(row.fence), ..row };
    let lease = &mut state.leases[r];
    *lease = Lease { row: lease.row.map(new_row), new: lease.new.map(new_row), ..*lease };
    for t in &mut state.transactions {
        t.fenced[r] = new(t.fenced[r]);
        t.excludes[r] = new(t.excludes[r]);
        t.phase = match t.phase {
            Phase::Wants { resource, seen, fence } if usize::from(resource) == r => {
                Phase::Wants { resource, seen: seen.map(new_row), fence: new(fence) }
            }
            Phase::Checks { resource, fence } if usize::from(resource) == r => {
                Phase::Checks { resource, fence: new(fence) }
            }
            other => other,
        };
    }
}

fn renumber_places(state: &mut State, r: usize) {
    let stands = |s: &usize| state.sessions[*s].places[r].fact != Fact::Absent;
    let numbers: [u8; SESSIONS] = std::array::from_fn(|s| {
        let before = |other: &usize| state.sessions[*other].places[r].number <= state.sessions[s].places[r].number;
        if stands(&s) { (0..SESSIONS).filter(stands).filter(before).count() as u8 } else { 0 }
    });
    for (session, number) in state.sessions.iter_mut().zip(numbers) {
        session.places[r].number = number;
    }
}

/// Puts resources into an order that does not depend on their numbers. Resources of equal rank keep their order, which
/// costs a few states and loses none.
fn exchange_resources(state: &mut State, system: &System) {
    let rank = |r: usize| {
        let lease = &state.leases[r];
        let row = |row: Option<Row>| row.map(|row| (row.holder.is_some(), row.fence));
        let waiting: [usize; 5] = std::array::from_fn(|kind| {
            state.sessions.iter().filter(|session| kind_of(session.places[r].fact) == kind).count()
        });
        let notes =
            state.transactions.map(|t| (t.post.has(r), t.judged.has(r), t.todo.has(r), t.fenced[r], t.excludes[r]));
        (row(lease.row), lease.by, row(lease.new), waiting, state.ring.has(r), notes)
    };
    if system.resources == RESOURCES && rank(0) > rank(1) {
        rename_resources(state, &[1, 0]);
    }
}

fn kind_of(fact: Fact) -> usize {
    match fact {
        Fact::Absent => 0,
        Fact::Inserting(_) => 1,
        Fact::Stands => 2,
        Fact::Locked(_) => 3,
        Fact::Deleting(_) => 4,
    }
}

fn rename_resources(state: &mut State, numbers: &[usize; RESOURCES]) {
    let old = *state;
    let set = |set: Set| set.renamed(numbers);
    for (r, to) in numbers.iter().enumerate() {
        state.leases[*to] = old.leases[r];
        for s in 0..SESSIONS {
            state.sessions[s].places[*to] = old.sessions[s].places[r];
        }
        for (t, old) in state.transactions.iter_mut().zip(&old.transactions) {
            t.fenced[*to] = old.fenced[r];
            t.excludes[*to] = old.excludes[r];
        }
    }
    for session in &mut state.sessions {
        session.trusts = set(session.trusts);
    }
    state.ring = set(state.ring);
    let name = |r: u8| numbers[usize::from(r)] as u8;
    for t in &mut state.transactions {
        (t.post, t.judged, t.todo) = (set(t.post), set(t.judged), set(t.todo));
        t.phase = match t.phase {
            Phase::Wants { resource, seen, fence } => Phase::Wants { resource: name(resource), seen, fence },
            Phase::Releases { resource } => Phase::Releases { resource: name(resource) },
            Phase::Checks { resource, fence } => Phase::Checks { resource: name(resource), fence },
            other => other,
        };
    }
}

/// Puts sessions into an order that does not depend on their numbers.
fn exchange_sessions(state: &mut State, system: &System) {
    let rank = |s: usize| {
        let is = |row: Option<Row>| row.is_some_and(|row| row.is_of(s));
        let holds = state.leases.map(|lease| (is(lease.row), is(lease.new)));
        let notes = state.transactions.map(|t| {
            let sets = [t.opened, t.ended, t.gone, t.grants, t.buries, t.closes, t.took_from, t.keeps_dead, t.dead];
            sets.map(|set| set.has(s))
        });
        let mine = std::array::from_fn::<_, CLIENTS, _>(|x| state.transactions[x].is_of(s));
        (state.sessions[s], holds, mine, notes)
    };
    let mut order: [usize; SESSIONS] = std::array::from_fn(|s| s);
    let ranks: [_; SESSIONS] = std::array::from_fn(rank);
    order[..system.sessions].sort_by_key(|s| &ranks[*s]);
    let mut numbers = [0; SESSIONS];
    for (number, s) in order.into_iter().enumerate() {
        numbers[s] = number;
    }
    if order.is_sorted() {
        return;
    }
    let old = state.sessions;
    state.sessions = order.map(|s| old[s]);
    let set = |set: Set| set.renamed(&numbers);
    let name = |s: u8| numbers[usize::from(s)] as u8;
    let row = |row: Row| Row { holder: row.holder.map(name), ..row };
    for lease in &mut state.leases {
        (lease.row, lease.new) = (lease.row.map(row), lease.new.map(row));
    }
    for t in &mut state.transactions {
        for field in [
            &mut t.opened,
            &mut t.ended,
            &mut t.gone,
            &mut t.grants,
            &mut t.buries,
            &mut t.closes,
            &mut t.took_from,
            &mut t.keeps_dead,
            &mut t.dead,
        ] {
            *field = set(*field);
        }
        if let Phase::Wants { resource, seen, fence } = t.phase {
            t.phase = Phase::Wants { resource, seen: seen.map(row), fence };
        }
    }
    for t in state.transactions[..CLIENTS].iter_mut().filter(|t| t.phase != Phase::Idle) {
        t.me = name(t.me);
    }
}
