//! Consumer groups: any number of members share the partitions of a group, and the server decides who owns which.
//!
//! A partition is a slot of the resource that has the group's name. Owning it, its fence, its expiry and its hand-over are those of
//! leases; what a group adds is who is next: not the first in line, but the partition's **target**. [`assign`] computes the targets from
//! the members and the present owners, and [`judge`] brings owners and targets together:
//!
//! | owner                    | target                | what happens                                                   |
//! |--------------------------|-----------------------|----------------------------------------------------------------|
//! | none, dead, letting go   | a living member       | granted, under a new fence                                     |
//! | living                   | the owner             | nothing: nobody stops who loses nothing                        |
//! | living                   | somebody else         | revoking: told, until it releases or the rebalance timeout     |
//! | living, draining         | somebody else         | kept until it releases: it gets nothing new, and nothing is taken |
//!
//! A group is judged by whoever changes something (join, leave, release, close), by a member that asks for its assignment, and by the
//! worker. Targets are written only by whoever has locked the group's row, which is tried and never waited for: who does not get it
//! leaves the work to the worker, so joins never wait for each other and never deadlock. Handing over needs no such lock: two who
//! judge by different targets can only give a partition to a member that has to give it back, never to two.
//!
//! A target that changes is a new **generation**. The owners concerned are told by their revision, as of everything else.

pub mod assign;
mod plan;
mod state;
mod verbs;

use crate::call::Call;
use crate::claim::{LeaseRow, Leases};
use crate::declaration::{self, Kind};
use crate::error::Result;
use crate::grant::{self, Candidate};
use crate::guard::{Guard, Mode};
use crate::handover::{HandOver, admit};
use crate::liveness::clock;
use crate::liveness::slots::SlotRef;
use crate::spi::{Statement, Value};
use crate::table::Locked;
use crate::{cursor, release};
use pgrx::Uuid;
use pgrx::pg_sys::{INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTOID, UUIDARRAYOID, UUIDOID};
use state::{Partition, State};
use std::collections::HashMap;

static TARGETS: Statement = Statement::writes(
    include_str!("../../sql/query/group/targets.sql"),
    &[TEXTOID, INT4ARRAYOID, UUIDARRAYOID, INT8ARRAYOID, INT8ARRAYOID, INT8OID],
);
static COUNT: Statement =
    Statement::writes(include_str!("../../sql/query/group/count.sql"), &[TEXTOID, UUIDARRAYOID, TEXTOID]);
static REMOVE: Statement =
    Statement::writes(include_str!("../../sql/query/group/remove.sql"), &[TEXTOID, UUIDARRAYOID]);
static ADVANCE: Statement = Statement::writes(include_str!("../../sql/query/group/advance.sql"), &[TEXTOID, INT8OID]);
static RESIZED: Statement = Statement::writes(include_str!("../../sql/query/group/resized.sql"), &[TEXTOID]);
static DROP_PARTITIONS: Statement =
    Statement::writes(include_str!("../../sql/query/group/drop_partitions.sql"), &[TEXTOID]);
static OF_SESSIONS: Statement =
    Statement::reads(include_str!("../../sql/query/group/of_sessions.sql"), &[UUIDARRAYOID]);
static INHERIT: Statement =
    Statement::writes(include_str!("../../sql/query/group/inherit.sql"), &[TEXTOID, UUIDOID, UUIDOID]);
static INHERIT_TARGETS: Statement =
    Statement::writes(include_str!("../../sql/query/group/inherit_targets.sql"), &[TEXTOID, UUIDOID, UUIDOID]);
static PAGE: Statement = Statement::reads(include_str!("../../sql/query/group/page.sql"), &[TEXTOID, INT4OID]);

/// Brings the owners of a group's partitions and their targets together, as far as nobody is in the way. `only`: grants to this session
/// alone; what others are to have is not for a transaction that may stay open for long.
pub fn judge(
    call: &Call,
    name: &str,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let Some(mut state) = State::read(call, name, letting_go) else { return Ok(()) };
    if state.wants_rebalance(clock::now()) {
        if state.lock() {
            // What was read before the lock may have been changed by whoever had it.
            let Some(locked) = State::read(call, name, letting_go) else { return Ok(()) };
            state = locked;
            rebalance(call, &mut state, letting_go, result)?;
        } else {
            result.busy.insert(name.to_owned());
        }
    }
    serve(call, &state, only, letting_go, result)?;
    if let Some(at) = state.next_due() {
        call.seam().judge_at(name, at);
    }
    Ok(())
}

/// Computes the targets anew, and tells the owners that are to give something back, or not any more. The caller has locked the group.
fn rebalance(
    call: &Call,
    state: &mut State,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let name = state.name.clone();
    resize_when_drained(call, state, letting_go)?;
    let now = clock::now();
    let before = state.targets();
    let plan = plan::plan(state, now, u64::from(state.rebalance_timeout_ms.cast_unsigned()) * 1_000);
    for (counted, sessions) in [(Some("active"), &plan.active), (Some("draining"), &plan.draining), (None, &plan.dead)]
    {
        // One that is just leaving is left to whoever judges next.
        let mine = state::lock_members(&name, sessions);
        if mine.len() < sessions.len() {
            result.busy.insert(name.clone());
        }
        let mut values = vec![Value::Text(&name), Value::Uuids(&mine)];
        match counted {
            _ if mine.is_empty() => 0,
            Some(counted) => {
                values.push(Value::Text(counted));
                call.db().execute(&COUNT, values)
            }
            None => call.db().execute(&REMOVE, values),
        };
    }
    if !plan.changed.is_empty() {
        let nil = Uuid::from_bytes([0; 16]);
        let partitions: Vec<i32> = plan.changed.clone();
        let of = |partition: &i32| &state.partitions[*partition as usize];
        let targets: Vec<Uuid> = partitions.iter().map(|p| of(p).target.unwrap_or(nil)).collect();
        let revoking: Vec<i64> = partitions.iter().map(|p| of(p).revoking.map_or(0, |(fence, _)| fence)).collect();
        let until: Vec<i64> = partitions.iter().map(|p| of(p).revoking.map_or(0, |(_, at)| at.cast_signed())).collect();
        call.db().execute(
            &TARGETS,
            vec![
                Value::Text(&name),
                Value::Ints(&partitions),
                Value::Uuids(&targets),
                Value::Longs(&revoking),
                Value::Longs(&until),
                Value::Long(call.shared.boot_id()),
            ],
        );
    }
    let moved = i64::from(before != state.targets());
    call.db().execute(&ADVANCE, vec![Value::Text(&name), Value::Long(moved)]);
    for session in plan.told {
        if let Some(at) = call.shared.find(call.home, session) {
            call.seam().revise(at);
        }
    }
    Ok(())
}

/// Gives the group its new number of partitions once nobody owns any: every cursor begins where the last of them had come to.
fn resize_when_drained(call: &Call, state: &mut State, letting_go: &dyn Fn(&LeaseRow) -> bool) -> Result<()> {
    let Some(partitions) = state.resize_to else { return Ok(()) };
    if state.is_owned() || !matches!(declaration::slots_in_use(call, &state.name, 0), Ok(None)) {
        return Ok(());
    }
    resize(call, &state.name, partitions);
    if let Some(resized) = State::read(call, &state.name, letting_go) {
        *state = resized;
    }
    Ok(())
}

fn resize(call: &Call, name: &str, partitions: i32) {
    cursor::resize(call, name, partitions);
    declaration::resize(call, name, partitions);
    declaration::forget_slots(call, name, 0);
    call.db().execute(&DROP_PARTITIONS, vec![Value::Text(name)]);
    call.db().execute(&RESIZED, vec![Value::Text(name)]);
}

/// Grants to the targets what is free, dead or let go of, and takes back what was to be released by now.
fn serve(
    call: &Call,
    state: &State,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let wanted = |known: &Partition| only.is_none() || only == known.target;
    let leases = Leases::open();
    let now = clock::now();
    let mut overdue: HashMap<i64, (i32, Uuid)> = HashMap::new();
    for (partition, known) in (0..).zip(&state.partitions).filter(|(_, known)| wanted(known)) {
        let late = known.revoking.filter(|(_, at)| *at <= now);
        if let (Some((fence, _)), Some(owner)) = (late, known.owner) {
            // A fenced transaction of the owner may still be open: nobody takes the partition before it ends.
            if Guard::Fence(fence).try_lock(Mode::Exclusive) {
                overdue.insert(fence, (partition, owner));
            } else {
                result.busy.insert(state.name.clone());
            }
        }
    }
    let released = |row: &LeaseRow| letting_go(row) || overdue.contains_key(&row.fence);
    let free = (0..).zip(&state.partitions).filter(|(_, known)| {
        known.target.is_some()
            && (known.owner.is_none() || known.row.is_some_and(|row| overdue.contains_key(&row.fence)))
    });
    let free: Vec<_> = free.collect();
    let mut ready = HashMap::<Uuid, SlotRef>::new();
    let skipped = admit(call, free.iter().filter_map(|(_, known)| known.target).collect(), &mut ready);
    if !skipped.is_empty() {
        result.busy.insert(state.name.clone());
    }
    let candidates = free.iter().filter_map(|(partition, known)| {
        Some(Candidate {
            resource: state.name.clone(),
            slot: *partition,
            declared: Some((Kind::Group, state.partitions.len() as i32)),
            row: known.row,
            released: known.row.is_some_and(|row| released(&row)),
            grantee: *ready.get(&known.target?)?,
            places: Vec::new(),
        })
    });
    let candidates: Vec<Candidate> = candidates.collect();
    let wanted = candidates.len();
    let granted = grant::grant(call, &leases, candidates);
    if granted.len() < wanted {
        result.busy.insert(state.name.clone());
    }
    let taken: Vec<(i32, Uuid)> = overdue.into_values().collect();
    let ungranted = taken.iter().filter(|(partition, _)| {
        let row = state.partitions[*partition as usize].row;
        !granted.contains_key(&(state.name.clone(), *partition))
            && row.is_some_and(|row| leases.lock(row.tid, false) == Locked::Mine)
    });
    let freed: Vec<_> = ungranted.map(|(partition, _)| (state.name.clone(), *partition)).collect();
    release::free(call, &freed, false);
    for (partition, owner) in taken {
        call.seam().changed(&state.name, partition);
        if let Some(at) = call.shared.find(call.home, owner) {
            call.seam().revise(at);
        }
    }
    result.granted.extend(granted.into_keys());
    Ok(())
}

/// The groups that sessions are members of.
pub fn of_sessions(call: &Call, sessions: &[Uuid]) -> Vec<String> {
    call.db().run(&OF_SESSIONS, vec![Value::Uuids(sessions)], |row| row.text(1))
}

/// Has the worker judge the groups of sessions.
pub fn note_groups(call: &Call, sessions: &[Uuid]) {
    for group in of_sessions(call, sessions) {
        call.seam().judge(&group);
    }
}

/// Takes sessions that have ended, or end with this transaction, out of their groups, and judges these. The groups that had to be left
/// to the worker.
pub fn leave_all(
    call: &Call,
    sessions: &[Uuid],
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    for group in of_sessions(call, sessions) {
        // Their rows go with the lock on the group's: the dead are taken out by whoever has it.
        let gone: Vec<Uuid> = state::lock_members(&group, sessions);
        if !gone.is_empty() {
            call.db().execute(&REMOVE, vec![Value::Text(&group), Value::Uuids(&gone)]);
        }
        judge(call, &group, None, letting_go, result)?;
        call.seam().judge(&group);
    }
    Ok(())
}

/// Locks a group, waiting for whoever has it.
pub fn lock(call: &Call, group: &str) {
    while State::read(call, group, &|_| false).is_some_and(|state| !state.lock_waiting()) {
        pgrx::check_for_interrupts!();
    }
}

/// Makes a session the successor of another in its groups. Whether all of it could be done.
pub fn inherit(call: &Call, old: Uuid, new: Uuid) -> bool {
    let mut all = true;
    for group in of_sessions(call, &[old]) {
        let locked = State::read(call, &group, &|_| false).is_some_and(|state| state.lock());
        if locked && state::lock_members(&group, &[old]).contains(&old) {
            for statement in [&INHERIT, &INHERIT_TARGETS] {
                call.db().execute(statement, vec![Value::Text(&group), Value::Uuid(old), Value::Uuid(new)]);
            }
        } else {
            all = false;
        }
        call.seam().judge(&group);
    }
    all
}

/// The names of groups after one, in order.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}
