//! Rebalancing: new targets for the partitions of a group.

use super::pass_on::pass_on;
use super::state::{self, Counted, GENERATION, RESIZE_TO, STALE, State};
use super::{bound, cursor, members, plan, targets};
use crate::base::error::Result;
use crate::call::Call;
use crate::lease::candidate::HandOver;
use crate::lease::declaration::{self, Kind};
use crate::lease::declare;
use crate::lease::row::LeaseRow;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::Tuple;
use crate::pg::{catalog, clock, transaction};
use crate::session;
use crate::shmem::counters::Counter;
use pgrx::pg_sys::{INT8OID, TEXTOID};
use std::ffi::CStr;

static ADVANCE: Statement = Statement::writes(include_str!("../../sql/query/group/advance.sql"), &[TEXTOID, INT8OID]);
static RESIZED: Statement = Statement::writes(include_str!("../../sql/query/group/resized.sql"), &[TEXTOID]);

/// Relations that a rebalance reads, writes or draws from, with those that a resize needs.
const REBALANCED_BY: [&CStr; 17] = [
    catalog::FENCES,
    c"_declarations",
    c"_groups",
    c"_members",
    c"_members_place_seq",
    c"_partitions",
    c"_leases",
    c"_sessions",
    c"_deaths",
    c"_successions",
    c"_history",
    c"_waiters",
    c"_cursors",
    c"_heads",
    c"_queues",
    c"_items",
    c"_later",
];

/// Locks the tables that a rebalance needs. Returns false if another session has locked one, for example by VACUUM
/// FULL. A commit or a look at an assignment must not fail for that: the group is judged later.
pub fn can_rebalance() -> bool {
    catalog::lock_all(&REBALANCED_BY)
}

/// Computes the targets anew. Tells the owners that must release a partition, or no longer need to. The caller has
/// locked the group.
pub fn rebalance(
    call: &Call,
    state: &mut State,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let name = state.name.clone();
    call.database.add(Counter::Rebalances, 1);
    if !state.knows_heirs {
        result.busy.insert(name);
        return Ok(());
    }
    for (old, new) in &state.heirs {
        if !pass_on(call, &name, *old, *new) {
            result.busy.insert(name.clone());
        }
    }
    resize_when_drained(call, state, letting_go)?;
    let now = clock::now();
    let before = state.targets();
    let plan = plan::plan(state, now, u64::from(state.rebalance_timeout_ms.cast_unsigned()) * 1_000);
    // Records deaths: other members get the partitions of a dead member even if its row cannot be removed now. Skips
    // sessions that end with this transaction.
    let gone = session::rows(&plan.dead).into_iter().filter(|row| call.standing_of(row).is_none());
    call.taken_from(&gone.map(|row| row.session).collect::<Vec<_>>());
    for (counted, sessions) in
        [(Some(Counted::Active), &plan.active), (Some(Counted::Draining), &plan.draining), (None, &plan.dead)]
    {
        // A member that is leaving is left to the next transaction that judges.
        let mine = members::lock(&name, sessions);
        if mine.len() < sessions.len() {
            result.busy.insert(name.clone());
        }
        match counted {
            _ if mine.is_empty() => (),
            Some(counted) => members::count(call, &name, &mine, counted.name()),
            None => {
                members::remove(call, &name, &mine);
            }
        }
    }
    // A transaction block may stay open, and members that leave would wait for it.
    if state.is_crowded() && !transaction::is_in_block() {
        members::move_up(&name, &state.members.iter().map(|member| member.session).collect::<Vec<_>>());
    }
    targets::write(call, &state.name, &state.rows(&plan.changed, call.shared.boot_id()));
    let moved = i64::from(before != state.targets());
    let advance = |row: &Tuple| {
        let generation = row.required::<i64>(GENERATION as usize) + moved;
        let due = moved > 0 || row.required(STALE as usize);
        due.then(|| vec![(GENERATION, Some(generation.into())), (STALE, Some(false.into()))])
    };
    call.written(state::change(&name, advance), &ADVANCE, vec![Value::Text(&name), Value::Long(moved)]);
    for session in plan.told {
        if let Some(at) = call.shared.find(call.home, session) {
            call.seam().revise(at);
        }
    }
    Ok(())
}

/// Gives the group its new number of partitions once none is owned. Every cursor then begins at the least position of
/// all. If a queue of the group has items, the resize is called off: no member would own their partitions, so no
/// session could finish them.
fn resize_when_drained(call: &Call, state: &mut State, letting_go: &dyn Fn(&LeaseRow) -> bool) -> Result<()> {
    let Some(partitions) = state.resize_to else { return Ok(()) };
    if state.is_owned() {
        return Ok(());
    }
    match resize(call, &state.name, partitions) {
        Ok(None) => (),
        Err(_) if bound::queues().has_items(call, &state.name) => keep_size(call, &state.name),
        _ => return Ok(()),
    }
    if let Some(resized) = State::read(call, &state.name, letting_go) {
        *state = resized;
    }
    Ok(())
}

/// Changes the number of partitions, unless a partition is in use: then returns a message that says by what. Changes
/// the declaration before it looks for owners; a grant looks at the declaration after it has written its row. So one of
/// the two sees the other. The caller has locked the group.
pub fn resize(call: &Call, name: &str, partitions: i32) -> Result<Option<String>> {
    let before = declaration::of_kind(name, Kind::Group)?.slots;
    declare::resize(call, name, partitions);
    let in_use = declare::slots_in_use(call, name, Some(Kind::Group));
    match in_use.and_then(|why| bound::queues().require_no_items(call, name).map(|()| why)) {
        Ok(None) => (),
        in_use => {
            declare::resize(call, name, before);
            return in_use;
        }
    }
    cursor::resize(call, name, before, partitions);
    declare::forget_slots(call, name, 0);
    targets::drop_all(call, name);
    keep_size(call, name);
    Ok(None)
}

/// Ends the request for another size, which has been met or called off.
pub fn keep_size(call: &Call, name: &str) {
    let resized = state::change(name, |_| Some(vec![(RESIZE_TO, None), (STALE, Some(true.into()))]));
    call.written(resized, &RESIZED, vec![Value::Text(name)]);
}
