//! Consumer groups: any number of members share the partitions of a group, and the server decides who owns which.
//!
//! A partition is a slot of the resource that has the group's name. Owning it, its fence, its expiry and its hand-over
//! are those of leases; what a group adds is who is next: not the first in line, but the partition's **target**.
//! [`assign`] computes the targets from the members and the present owners, and [`judge`] brings owners and targets
//! together:
//!
//! | owner                    | target                | what happens                                                   |
//! |--------------------------|-----------------------|----------------------------------------------------------------|
//! | none, dead, letting go   | a living member       | granted, under a new fence                                     |
//! | living                   | the owner             | nothing: nobody stops who loses nothing; after a promotion a new fence |
//! | living                   | somebody else         | revoking: told, until it releases or the rebalance timeout     |
//! | living, but has left     | anybody               | taken back: it was granted while it left                       |
//! | living, draining         | somebody else         | kept until it releases: it gets nothing new, and nothing is taken |
//!
//! A group is judged by whoever changes something (join, leave, release, close), by a member that asks for its
//! assignment, and by the worker. Targets are written only by whoever has locked the group's row, which is tried and
//! never waited for: who does not get it leaves the work to the worker, so joins never wait for each other and never
//! deadlock. Nor does a transaction block take it, which may stay open, unless the worker should have been there
//! already; one that only asks for an assignment does so at its commit then. A DO statement and a procedure, which may
//! go on for long, do it at their commit. (A user's function in a client's own statement hears of its partitions at
//! once.) Handing over needs no such lock: two who judge by different targets can only give a partition to a member
//! that is then asked to give it back, never to two.
//!
//! So a release does not judge the group, which takes as long as the group is large: it looks up the targets of its own
//! partitions, and gives these to them ([`hand_over`]). What has no living target is left to the worker.
//!
//! A member that was taken over has its place until its successor's row is there: the take-over writes that at its
//! commit, and where another transaction is in the way the sweep or the next rebalance does. Whoever reads the group
//! meanwhile finds the successor in the place of its predecessor, as a member and as a target ([`State::heirs`]), so
//! that no partition of it is anybody else's.
//!
//! A target that changes is a new **generation**. The owners concerned are told by their revision, as of everything
//! else.

pub mod assign;
pub mod bound;
pub mod cursor;
pub mod members;
mod plan;
mod rebalance;
mod serve;
pub mod state;
mod targets;
mod verbs;

use crate::base::error::Result;
use crate::base::settings;
use crate::call::{Call, runs_code};
use crate::lease::handover::HandOver;
use crate::lease::kind::Rules;
use crate::lease::row::LeaseRow;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::{catalog, clock};
use crate::session::{self, succession};
use crate::shmem::Shared;
use crate::{keys, seam};
use pgrx::Uuid;
use pgrx::pg_sys::{self, INT4OID, TEXTOID};
use state::{STALE, State};
use std::ffi::CStr;

static UNBALANCED: Statement = Statement::writes(include_str!("../../sql/query/group/unbalanced.sql"), &[TEXTOID]);
static PAGE: Statement = Statement::reads(include_str!("../../sql/query/group/page.sql"), &[TEXTOID, INT4OID]);

/// What a rebalance reads, writes or draws from, with those that it needs where the group is resized.
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

/// The rules of names that are groups.
pub struct OfGroups;

impl Rules for OfGroups {
    fn is_overdue(&self, call: &Call, group: &str, partition: i32, fence: i64) -> bool {
        state::is_overdue(call, group, partition, fence)
    }

    fn judge(
        &self,
        call: &Call,
        group: &str,
        letting_go: &dyn Fn(&LeaseRow) -> bool,
        result: &mut HandOver,
    ) -> Result<()> {
        judge(call, group, None, letting_go, result).map(|_| ())
    }

    fn hand_over(
        &self,
        call: &Call,
        group: &str,
        from: Uuid,
        rows: &[LeaseRow],
        letting_go: &dyn Fn(&LeaseRow) -> bool,
        result: &mut HandOver,
    ) -> Result<()> {
        hand_over(call, group, from, rows, letting_go, result)
    }
}

/// Brings the owners of a group's partitions and their targets together, as far as nobody is in the way. `only`: grants
/// to this session alone; what others are to have is not for a transaction that may stay open for long. Gives the group
/// as it stands, unless it has changed an owner.
pub fn judge(
    call: &Call,
    name: &str,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<Option<State>> {
    let rebalances = |state: &State, now| {
        if runs_code() {
            call.seam().at_commit(&state.name, judge_at_commit);
            return false;
        }
        !(in_block() && worker_comes(state, now))
    };
    judge_if(call, name, only, letting_go, result, rebalances)
}

/// The same for one that reads its assignment. Its transaction block does not keep the group's row from all who join,
/// leave or end.
fn judge_for_reader(call: &Call, name: &str, reader: Uuid) -> Result<Option<State>> {
    let rebalances = |state: &State, now| {
        let runs_code = runs_code();
        if runs_code || in_block() && !worker_comes(state, now) {
            call.seam().at_commit(&state.name, judge_at_commit);
        }
        !runs_code && !in_block() && can_rebalance()
    };
    judge_if(call, name, Some(reader), &|_| false, &mut HandOver::default(), rebalances)
}

fn worker_comes(state: &State, now: u64) -> bool {
    settings::WORKER.get() && state.can_wait(now)
}

fn in_block() -> bool {
    // SAFETY: reads the state of the transaction
    unsafe { pg_sys::IsInTransactionBlock(true) }
}

/// Returns whether no other session, such as one that runs VACUUM FULL, has any table locked that a rebalance needs.
/// Neither a commit nor a look at an assignment fails for that: the group is judged later.
fn can_rebalance() -> bool {
    catalog::lock_all(&REBALANCED_BY)
}

fn judge_at_commit(shared: &'static Shared, name: &str) -> Result<()> {
    let call = Call::open(shared)?;
    if !can_rebalance() {
        call.seam().judge(name);
        return Ok(());
    }
    judge_if(&call, name, None, &|_| false, &mut HandOver::default(), |_, _| true).map(drop)
}

/// `rebalances`: whether this call does so, of a state that wants it; otherwise it is left to the worker.
fn judge_if(
    call: &Call,
    name: &str,
    only: Option<Uuid>,
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
    rebalances: impl Fn(&State, u64) -> bool,
) -> Result<Option<State>> {
    let Some(mut state) = State::read(call, name, letting_go) else { return Ok(None) };
    let (mut now, mut locked) = (clock::now(), false);
    // Members that come and go between two rebalances may bring none about.
    if state.wants_rebalance(now) || state.is_crowded() && !in_block() {
        if !rebalances(&state, now) {
            call.seam().judge(name);
        } else if state.lock() {
            // What was read before the lock may have been changed by whoever had it.
            let Some(again) = State::read(call, name, letting_go) else { return Ok(None) };
            (state, locked) = (again, true);
            rebalance::rebalance(call, &mut state, letting_go, result)?;
            now = clock::now();
        } else {
            result.busy.insert(name.to_owned());
        }
    }
    let moved = serve::serve(call, &state, now, only, letting_go, result);
    if result.busy.contains(name) {
        // The worker tries again what it could not do, ever more rarely; from anybody else it hears of it here. What
        // this transaction has had in hand may have been in its way.
        if moved || locked {
            call.seam().judge(name);
        } else {
            call.seam().in_vain(name);
        }
    }
    if let Some(at) = state.next_due(now) {
        call.seam().judge_at(name, at);
    }
    Ok((!moved).then_some(state))
}

/// Gives partitions, which `from` lets go of in this transaction, to their targets. What has none that lives is left to
/// the worker, which judges the group after the commit; but with the worker off, or where `from` is no member any more,
/// the group is judged here.
fn hand_over(
    call: &Call,
    name: &str,
    from: Uuid,
    rows: &[LeaseRow],
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<()> {
    let is_done = serve::hand_over(call, name, rows, result);
    let is_left_to_worker = || settings::WORKER.get() && members::is_member(name, from);
    if is_done || is_left_to_worker() {
        return Ok(());
    }
    judge(call, name, None, letting_go, result).map(drop)
}

/// The groups in which sessions are members in their own names, in order.
pub fn of_sessions(sessions: &[Uuid]) -> Vec<String> {
    // Mostly nobody is a member of any.
    if members::may_be() { members::groups_of(sessions) } else { Vec::new() }
}

/// Has the worker judge the groups of sessions.
pub fn note_groups(call: &Call, sessions: &[Uuid]) {
    for group in of_sessions(sessions) {
        call.seam().judge(&group);
    }
}

/// Takes sessions that have ended, or end with this transaction, out of their groups, and judges these. Whether there
/// were any.
pub fn leave_all(
    call: &Call,
    sessions: &[Uuid],
    letting_go: &dyn Fn(&LeaseRow) -> bool,
    result: &mut HandOver,
) -> Result<bool> {
    let groups = of_sessions(sessions);
    let any = !groups.is_empty();
    for group in groups {
        // Their rows go with the lock on the group's: the dead are taken out by whoever has it.
        members::remove(call, &group, &members::lock(&group, sessions));
        judge(call, &group, None, letting_go, result)?;
        // Nobody comes back to these sessions for what could not be done now, neither the worker.
        call.seam().judge_at(&group, clock::now());
    }
    Ok(any)
}

/// Keeps others from making the session a member, to the end of the transaction: they would wait for each other's row.
/// False if somebody is at it.
fn claim_membership(group: &str, session: Uuid) -> bool {
    Guard::Seat(session, keys::fnv1a(group)).try_lock(Mode::Exclusive)
}

/// Makes a session the successor of another in its groups. Returns whether all of it could be done.
pub fn inherit(call: &Call, old: Uuid, new: Uuid) -> bool {
    let mut all = true;
    for group in of_sessions(&[old]) {
        all &= state::try_lock(&group) && pass_on(call, &group, old, new);
        call.seam().judge(&group);
    }
    all
}

/// Has a session that this transaction takes over passed on in its groups when that commits. Returns whether it is in
/// none. Prepared, or where another transaction is in the way, this is left to the sweep.
pub fn inherit_at_commit(call: &Call, old: Uuid) -> bool {
    let groups = of_sessions(&[old]);
    if !groups.is_empty() {
        call.seam().at_commit("", pass_on_at_commit);
    }
    groups.iter().for_each(|group| call.seam().judge(group));
    groups.is_empty()
}

fn pass_on_at_commit(shared: &'static Shared, _: &str) -> Result<()> {
    let call = Call::open(shared)?;
    if can_rebalance() {
        for old in seam::ended() {
            succession::living_successor(&call, old).map(|new| inherit(&call, old, new.session));
        }
    }
    Ok(())
}

/// Gives the membership of a session to its successor, unless that has one in its own name; and what it is to own. The
/// caller has locked the group. Returns whether no other transaction is in the way.
fn pass_on(call: &Call, group: &str, old: Uuid, new: Uuid) -> bool {
    // One that is just ending has looked for its groups.
    let stays = || Guard::Grantee(new).try_lock(Mode::Shared) && session::row(new).is_some();
    if !claim_membership(group, new) || !stays() || !members::lock(group, &[old]).contains(&old) {
        return false;
    }
    if members::has_row(group, new) {
        // Two have become one, and what each had is too much for one.
        let unbalanced = state::change(group, |_| Some(vec![(STALE, Some(true.into()))]));
        call.written(unbalanced, &UNBALANCED, vec![Value::Text(group)]);
    }
    members::inherit(call, group, old, new);
    targets::inherit(call, group, old, new);
    true
}

/// The names of groups after one, in order.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}
