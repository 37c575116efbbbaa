//! The SQL functions of groups.

use super::assign::Assignor;
use super::judge::{judge, judge_for_reader};
use super::rebalance::{keep_size, resize};
use super::state::{self, RESIZE_TO, STALE, State};
use super::{bound, cursor, members, targets};
use crate::base::error::{Error, Result};
use crate::base::{interval, limits};
use crate::call::{Call, Given, enter, enter_writing, text_arg};
use crate::lease::acquire::grantee;
use crate::lease::candidate::HandOver;
use crate::lease::declaration::{self, Kind, Stands};
use crate::lease::release::{self, release_seat, release_seats};
use crate::lease::{declare, fence, row};
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::row::TableIterator;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Tuple};
use crate::pg::text::Text;
use crate::pg::transaction;
use crate::session::holders::Holders;
use crate::session::{self, succession, touch};
use crate::shmem::slots::SlotRef;
use pgrx::datum::Interval;
use pgrx::pg_sys::{INT4OID, TEXTOID};
use pgrx::prelude::*;
use pgrx::{Uuid, name};
use std::collections::HashSet;

static CREATE: Statement =
    Statement::writes(include_str!("../../sql/query/group/create.sql"), &[TEXTOID, TEXTOID, INT4OID, INT4OID]);
static ALTER: Statement =
    Statement::writes(include_str!("../../sql/query/group/alter.sql"), &[TEXTOID, TEXTOID, INT4OID, INT4OID]);
static DRAIN: Statement = Statement::writes(include_str!("../../sql/query/group/drain.sql"), &[TEXTOID, INT4OID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/group/drop.sql"), &[TEXTOID]);

/// Returns the state of a group that the caller owns, locked to the end of the transaction. The row of the group is
/// locked before its declaration, as in a rebalance.
fn lock_owned(call: &Call, name: &str) -> Result<State> {
    lock_if_any(call, name)?.ok_or_else(|| declaration::unknown(name, Kind::Group))
}

fn lock_if_any(call: &Call, name: &str) -> Result<Option<State>> {
    if declaration::owned_if_any(call, name, Kind::Group)?.is_none() {
        return Ok(None);
    }
    let locked = || State::read(call, name, &|_| false).is_none_or(|state| state.lock());
    declaration::patiently(name, || Ok(locked().then_some(())))?;
    let declared = declaration::lock_if_any(call, name, Kind::Group)?;
    Ok(declared.and_then(|_| State::read(call, name, &|_| false)))
}

#[pg_extern(schema = "eskit_lease")]
fn group_create(
    group_name: Option<Text>,
    partitions: Option<i32>,
    assignor: default!(Option<Text>, "'sticky'"),
    rebalance_timeout: default!(Option<Interval>, "'30 s'"),
    settle_delay: default!(Option<Interval>, "'0'"),
) -> Result<()> {
    let shared = enter_writing("group_create()")?;
    let name = text_arg("group_name", group_name)?;
    let partitions = declaration::slots_arg("partitions", partitions)?;
    let assignor = Assignor::named(&assignor.given("assignor")?)?;
    let timeout = interval::delay_ms("rebalance_timeout", rebalance_timeout.given("rebalance_timeout")?)?;
    let settle = interval::delay_ms("settle_delay", settle_delay.given("settle_delay")?)?;
    let call = Call::open(shared)?;
    declare::declare(&call, &name, Kind::Group, partitions)?;
    let values = vec![Value::Text(&name), Value::Text(assignor.name()), Value::Int(timeout), Value::Int(settle)];
    call.db().execute(&CREATE, values);
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn group_alter(
    group_name: Option<Text>,
    assignor: default!(Option<Text>, "NULL"),
    rebalance_timeout: default!(Option<Interval>, "NULL"),
    settle_delay: default!(Option<Interval>, "NULL"),
) -> Result<()> {
    let shared = enter_writing("group_alter()")?;
    let name = text_arg("group_name", group_name)?;
    let assignor = assignor.map(|assignor| Assignor::named(&assignor)).transpose()?;
    let timeout = rebalance_timeout.map(|timeout| interval::delay_ms("rebalance_timeout", timeout)).transpose()?;
    let settle = settle_delay.map(|delay| interval::delay_ms("settle_delay", delay)).transpose()?;
    let call = Call::open(shared)?;
    let state = lock_owned(&call, &name)?;
    let values = vec![
        Value::Text(&name),
        Value::Text(assignor.unwrap_or(state.assignor).name()),
        Value::MaybeInt(timeout),
        Value::MaybeInt(settle),
    ];
    let change = |_: &Tuple| {
        let assignor = assignor.unwrap_or(state.assignor);
        let mut columns = vec![(2, Value::Text(assignor.name()).datum())];
        columns.extend(
            [(3, timeout), (4, settle)].into_iter().filter_map(|(column, ms)| Some((column, Some(ms?.into())))),
        );
        columns.extend((assignor != state.assignor).then_some((STALE, Some(true.into()))));
        Some(columns)
    };
    call.written(state::change(&name, change), &ALTER, values);
    judge(&call, &name, None, &|_| false, &mut HandOver::default())?;
    call.seam().judge(&name);
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn group_resize(
    group_name: Option<Text>,
    partitions: Option<i32>,
    drain: default!(Option<bool>, "false"),
) -> Result<bool> {
    let shared = enter_writing("group_resize()")?;
    let name = text_arg("group_name", group_name)?;
    let partitions = declaration::slots_arg("partitions", partitions)?;
    let drain = drain.given("drain")?;
    let call = Call::open(shared)?;
    let state = lock_owned(&call, &name)?;
    if state.partitions.len() as i32 != partitions {
        match resize(&call, &name, partitions)? {
            None => (),
            Some(why) if !drain => return Err(Error::Owned { name, why }.into()),
            Some(_) => {
                let change = |_: &Tuple| Some(vec![(RESIZE_TO, Some(partitions.into())), (STALE, Some(true.into()))]);
                let values = vec![Value::Text(&name), Value::Int(partitions)];
                call.written(state::change(&name, change), &DRAIN, values);
            }
        }
    } else if state.resize_to.is_some() {
        // The group has this size already, so an earlier request for another size is called off.
        keep_size(&call, &name);
    } else {
        return Ok(true);
    }
    judge(&call, &name, None, &|_| false, &mut HandOver::default())?;
    call.seam().judge(&name);
    Ok(declaration::of(&name).is_some_and(|declaration| declaration.slots == partitions))
}

#[pg_extern(schema = "eskit_lease", name = "group_drop")]
fn group_drop_if(group_name: Option<Text>, missing_ok: default!(Option<bool>, "false")) -> Result<bool> {
    let shared = enter_writing("group_drop()")?;
    let name = text_arg("group_name", group_name)?;
    let missing_ok = missing_ok.given("missing_ok")?;
    let call = Call::open(shared)?;
    if lock_if_any(&call, &name)?.is_none() {
        return if missing_ok { Ok(false) } else { Err(declaration::unknown(&name, Kind::Group)) };
    }
    declare::undeclare(&call, &name, Kind::Group)?;
    // The members are read after the declaration is deleted. A join writes the member's row and then looks at the
    // declaration, so one of the two sees the other.
    let (members, joining) = members::sessions(&name);
    if joining {
        return Err(Error::BeingDeclared { name }.into());
    }
    let heirs = members.iter().filter_map(|member| succession::successor(*member));
    let named: Vec<Uuid> = members.iter().copied().chain(heirs).collect();
    let living = Holders::of(&call, named.iter().copied());
    if let Some(member) = named.iter().find_map(|member| living.living(Some(*member))) {
        let (kind, why) = (Kind::Group.name(), format!("\"{}\" is a member.", member.consumer));
        return Err(Error::InUse { kind, name, why }.into());
    }
    bound::queues().require_unbound(&call, &name)?;
    call.taken_from(&members);
    let key = [Key::Text(&name)];
    call.written(state::table().delete_rows(&key), &DROP, vec![Value::Text(&name)]);
    members::drop_all(&call, &name);
    targets::drop_all(&call, &name);
    cursor::drop_all(&call, &name).map(|()| true)
}

/// Keeps the signature that versions up to 0.2.0 declare.
#[pg_extern(sql = false)]
fn group_drop(group_name: Option<Text>) -> Result<()> {
    group_drop_if(group_name, Some(false)).map(|_| ())
}

/// Heartbeats a session, which must be alive.
fn living(shared: &'static crate::shmem::Shared, session: Option<Uuid>) -> Result<SlotRef> {
    touch(shared, session.given("session")?)?.acquirer().map_err(session::ended)
}

#[pg_extern(schema = "eskit_lease")]
fn group_join(group_name: Option<Text>, session: Option<Uuid>) -> Result<i64> {
    let shared = enter_writing("group_join()")?;
    let name = text_arg("group_name", group_name)?;
    let me = living(shared, session)?;
    let call = Call::open(shared)?;
    declaration::of_kind(&name, Kind::Group)?;
    if !members::is_member(&name, me.session()) {
        grantee(&call, me).map_err(session::ended)?;
        if !members::claim(&name, me.session()) {
            return Err(Error::Joining { group: name }.into());
        }
        // Another connection of the session may have joined before the claim.
        if !members::is_member(&name, me.session()) {
            members::join(&call, &name, me.session());
        }
        // A drop of the group looks for members after it has deleted the declaration.
        if !matches!(declaration::stands(&name), Stands::Declared(_)) {
            return Err(Error::BeingDeclared { name }.into());
        }
        judge(&call, &name, Some(me.session()), &|_| false, &mut HandOver::default())?;
        call.seam().judge(&name);
        call.seam().revise(me);
    }
    state::generation(&name).ok_or_else(|| declaration::unknown(&name, Kind::Group))
}

/// Removes a session from a group. Returns how many rows it deleted: a session may also be a member in the names of
/// sessions that it took over. Their rows are deleted first, since the sweep may just be giving one of them to this
/// session.
fn leave(call: &Call, group: &str, session: Uuid) -> u64 {
    let named: Vec<Uuid> = succession::former(session).into_iter().chain([session]).collect();
    members::remove(call, group, &named)
}

#[pg_extern(schema = "eskit_lease")]
fn group_leave(group_name: Option<Text>, session: Option<Uuid>) -> Result<bool> {
    let shared = enter_writing("group_leave()")?;
    let name = text_arg("group_name", group_name)?;
    let session = session.given("session")?;
    let call = Call::open(shared)?;
    declaration::of_kind(&name, Kind::Group)?;
    let Some(at) = call.session(session)?.filter(|_| members::is_member(&name, session)) else { return Ok(false) };
    // As a release does, this waits for the session's own fenced transactions and keeps new ones out.
    let owned = || row::of_session(&name, session);
    let mut fences: Vec<i64> = owned().into_iter().map(|row| row.fence).collect();
    if fences.len() > limits::GRANT_BATCH {
        Guard::Fencer(session).lock(Mode::Exclusive);
    } else {
        fences.sort_unstable();
        fence::exclude(fences.iter().copied());
    }
    if leave(&call, &name, session) == 0 {
        return Ok(false);
    }
    let leases = row::Leases::open();
    let excluded = |row: &row::LeaseRow| row.session == Some(session) && fences.contains(&row.fence);
    let rows = owned().into_iter().filter_map(|row| leases.find(&name, row.slot, true, excluded));
    release::release(&call, at, rows.map(|row| (name.clone(), row)).collect())?;
    judge(&call, &name, None, &|_| false, &mut HandOver::default())?;
    call.seam().judge(&name);
    Ok(true)
}

#[pg_extern(schema = "eskit_lease")]
fn group_assignment(
    group_name: Option<Text>,
    session: Option<Uuid>,
) -> Result<
    TableIterator<(name!(partition, i32), name!(fence, i64), name!(state, Text), name!(revoke_in, Option<Interval>))>,
> {
    let shared = enter()?;
    let name = text_arg("group_name", group_name)?;
    let me = living(shared, session)?;
    let call = Call::open(shared)?;
    declaration::of_kind(&name, Kind::Group)?;
    if !members::is_member(&name, me.session()) {
        return Err(Error::NotMember { group: name }.into());
    }
    let judged = if transaction::is_read_only() {
        None
    } else {
        // Partitions must move even if the worker is stopped.
        judge_for_reader(&call, &name, me.session())?
    };
    let now = clock::now();
    let state = judged
        .or_else(|| State::read(&call, &name, &|_| false))
        .ok_or_else(|| declaration::unknown(&name, Kind::Group))?;
    // A draining session must release all that it owns, even if no other member can get it.
    let drains = state.members.iter().any(|member| member.session == me.session() && member.draining);
    let mine: Vec<_> = (0..)
        .zip(state.partitions)
        .filter(|(_, known)| known.owner == Some(me.session()))
        .filter_map(|(partition, known)| {
            let moves = known.revoking.is_some() || known.target.is_some_and(|target| target != me.session());
            let left = |at: u64| i64::try_from(at.saturating_sub(now)).unwrap_or(0);
            let revoke_in = known.revoking.map(|(_, at)| Interval::from_micros(left(at)));
            Some((partition, known.fence()?, Text::from(if drains || moves { "revoking" } else { "owned" }), revoke_in))
        })
        .collect();
    Ok(TableIterator::of(mine))
}

#[pg_extern(schema = "eskit_lease")]
fn group_release(group_name: Option<Text>, partition: Option<i32>, fence: Option<i64>) -> Result<bool> {
    let shared = enter_writing("group_release()")?;
    let name = text_arg("group_name", group_name)?;
    let partition = declaration::partition_arg(&name, partition)?;
    release_seat(&Call::open(shared)?, &name, partition, fence.given("fence")?)
}

/// Pairs the elements of two arrays as partitions and their fences.
fn seats_arg(
    group: &str,
    partitions: Option<Vec<Option<i32>>>,
    fences: Option<Vec<Option<i64>>>,
) -> Result<Vec<(i32, i64)>> {
    let partitions = partitions.given("partitions")?;
    let fences = fences.given("fences")?;
    if partitions.len() != fences.len() {
        return Err(Error::Fences { fences: fences.len(), partitions: partitions.len() }.into());
    }
    let count = declaration::of_kind(group, Kind::Group)?.slots;
    let mut seen = HashSet::new();
    let seat = |(partition, fence): (Option<i32>, Option<i64>)| {
        let partition = partition.given("partition")?;
        if !(0..count).contains(&partition) {
            return Err(Error::NoPartition { group: group.to_owned(), partition, partitions: count }.into());
        }
        if !seen.insert(partition) {
            return Err(Error::Twice { what: "partition", given: partition.to_string() }.into());
        }
        Ok((partition, fence.given("fence")?))
    };
    partitions.into_iter().zip(fences).map(seat).collect()
}

#[pg_extern(schema = "eskit_lease")]
fn group_release_many(
    group_name: Option<Text>,
    partitions: Option<Vec<Option<i32>>>,
    fences: Option<Vec<Option<i64>>>,
) -> Result<TableIterator<(name!(partition, i32), name!(released, bool))>> {
    let shared = enter_writing("group_release_many()")?;
    let name = text_arg("group_name", group_name)?;
    let seats = seats_arg(&name, partitions, fences)?;
    let released = release_seats(&Call::open(shared)?, &name, &seats)?;
    let row = |(partition, _)| (partition, released.contains(&partition));
    Ok(TableIterator::of(seats.into_iter().map(row).collect()))
}
