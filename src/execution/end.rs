//! Ending an attempt: by the session that runs it, or by an administrator.

use super::{Executions, Probe, State, column, now};
use crate::base::error::{Error, Result, log};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::pg::guard::Mode;
use crate::pg::json::Jsonb;
use crate::pg::role;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::Tuple;
use crate::pg::text::{Text, role_name, role_of_name};
use crate::seam;
use crate::session;
use crate::shmem::counters::Counter;
use crate::shmem::databases::Kept;
use crate::shmem::word;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{Datum, INT8OID, JSONBOID, TEXTOID};
use pgrx::prelude::*;

static FINISH: Statement =
    Statement::writes(include_str!("../../sql/query/execution/finish.sql"), &[TEXTOID, JSONBOID, INT8OID]);
static FAIL: Statement =
    Statement::writes(include_str!("../../sql/query/execution/fail.sql"), &[TEXTOID, TEXTOID, TEXTOID, INT8OID]);
static RESOLVE: Statement = Statement::writes(
    include_str!("../../sql/query/execution/resolve.sql"),
    &[TEXTOID, TEXTOID, JSONBOID, TEXTOID, INT8OID],
);

/// Returns true if this transaction may end the attempt under a fence, and false if the attempt has ended already,
/// under this fence and in a state of `ended`. Refuses in any other case.
fn claim(call: &Call, key: &str, fence: i64, ended: &[State]) -> Result<bool> {
    let in_flight = || ErrorReport::from(Error::AttemptInFlight { key: key.to_owned() });
    let lost = |why: String| {
        call.database.add(Counter::FencesLost, 1);
        ErrorReport::from(Error::AttemptLost { key: key.to_owned(), fence, why })
    };
    let executions = Executions::open();
    let row = match executions.probe(key) {
        Probe::InFlight => return Err(in_flight()),
        Probe::Row(row) if row.fence > fence => {
            return Err(lost(format!("Another attempt has begun under fence {}.", row.fence)));
        }
        Probe::Row(row) if row.fence == fence => row,
        Probe::Row(_) => return Err(lost("No such fence has been granted, or its grant was rolled back.".to_owned())),
        Probe::Absent => {
            return Err(lost("No such fence has been granted, or the key has been removed since.".to_owned()));
        }
    };
    if row.state != State::Running {
        // The session may be gone, so the row names the role of the attempt. If that role is dropped, only superusers
        // pass.
        if !role::acts_as(call.caller, role_of_name(&row.role)) {
            return Err(Error::Foreign { owner: row.role, resource: None }.into());
        }
        let said = row.resolved_by.is_none() && ended.contains(&row.state);
        return if said { Ok(false) } else { Err(lost(row.why_over())) };
    }
    let at = call.session(row.session)?.ok_or_else(|| lost(row.why_over()))?;
    if !call.fencer(at).try_lock(Mode::Shared) || !executions.lock(&row) {
        return Err(in_flight());
    }
    // This very transaction has ended the session.
    if seam::has_ended(at.session()) {
        return Err(lost(row.why_over()));
    }
    match session::ending::outcome(call.shared, at) {
        Some(word::State::Alive) => Ok(true),
        Some(word::State::Frozen) => Err(in_flight()),
        _ => Err(lost(row.why_over())),
    }
}

fn state(state: State) -> Option<Datum> {
    Value::Text(state.name()).datum()
}

/// Refuses a result that is too large.
fn require_size(key: &str, result: Option<&Jsonb>) -> Result<()> {
    match result.map_or(0, Jsonb::text_length) {
        0..=limits::MAX_RESULT => Ok(()),
        length => Err(Error::ResultTooLarge { key: key.to_owned(), length }.into()),
    }
}

#[pg_extern(schema = "eskit_lease")]
fn execution_finish(key: Option<Text>, fence: Option<i64>, result: default!(Option<Jsonb>, "NULL")) -> Result<bool> {
    let shared = enter_writing("execution_finish()")?;
    let key = text_arg("key", key)?;
    let fence = fence.given("fence")?;
    require_size(&key, result.as_ref())?;
    let call = Call::open(shared)?;
    let mine = claim(&call, &key, fence, &[State::Done])?;
    if mine {
        let change = |_: &Tuple| {
            let result = Value::MaybeJson(result.as_ref()).datum();
            vec![(column::STATE, state(State::Done)), (column::FINISHED_AT, now()), (column::RESULT, result)]
        };
        let values = vec![Value::Text(&key), Value::MaybeJson(result.as_ref()), Value::Long(fence)];
        call.written(Executions::open().change(&key, fence, change), &FINISH, values);
        call.seam().count(Counter::ExecutionsFinished, 1);
        call.seam().kept(Kept::Executions);
    }
    Ok(mine)
}

#[pg_extern(schema = "eskit_lease")]
fn execution_fail(
    key: Option<Text>,
    fence: Option<i64>,
    error: Option<Text>,
    retry: default!(Option<bool>, "false"),
) -> Result<bool> {
    let shared = enter_writing("execution_fail()")?;
    let key = text_arg("key", key)?;
    let fence = fence.given("fence")?;
    let error = error.given("error")?;
    let retry = retry.given("retry")?;
    let call = Call::open(shared)?;
    let mine = claim(&call, &key, fence, &[State::Failed, State::Retry])?;
    if mine {
        let ended = if retry { State::Retry } else { State::Failed };
        let kept = &error[..error.floor_char_boundary(limits::MAX_EXECUTION_ERROR)];
        let change = |_: &Tuple| {
            let error = Value::Text(kept).datum();
            vec![(column::STATE, state(ended)), (column::FINISHED_AT, now()), (column::ERROR, error)]
        };
        let values = vec![Value::Text(&key), Value::Text(ended.name()), Value::Text(kept), Value::Long(fence)];
        call.written(Executions::open().change(&key, fence, change), &FAIL, values);
        call.seam().count(Counter::ExecutionsFailed, 1);
    }
    Ok(mine)
}

#[pg_extern(schema = "eskit_lease")]
fn execution_resolve(
    key: Option<Text>,
    outcome: Option<Text>,
    result: default!(Option<Jsonb>, "NULL"),
) -> Result<bool> {
    let shared = enter_writing("execution_resolve()")?;
    let key = text_arg("key", key)?;
    let outcome = outcome.given("outcome")?;
    let state = State::outcome(&outcome).ok_or_else(|| Error::Outcome(outcome.0.clone()))?;
    if result.is_some() && state != State::Done {
        return Err(Error::NoResult(outcome.0).into());
    }
    require_size(&key, result.as_ref())?;
    let call = Call::open(shared)?;
    let executions = Executions::open();
    let in_flight = || ErrorReport::from(Error::AttemptInFlight { key: key.clone() });
    let row = match executions.probe(&key) {
        Probe::Absent => return Err(Error::Unknown { kind: "execution", name: key }.into()),
        Probe::InFlight => return Err(in_flight()),
        Probe::Row(row) => row,
    };
    let open = row.state == State::Failed || row.state == State::Running && !row.lives(&call);
    if !open {
        return Ok(false);
    }
    if !executions.lock(&row) {
        return Err(in_flight());
    }
    if row.state == State::Running {
        call.taken_from(&[row.session]);
    }
    let by = role_name(call.caller);
    log(format!("role \"{by}\" resolves execution \"{key}\", fence {}, as {}", row.fence, state.name()));
    let values = vec![
        Value::Text(&key),
        Value::Text(state.name()),
        Value::MaybeJson(result.as_ref()),
        Value::Text(&by),
        Value::Long(row.fence),
    ];
    let change = |row: &Tuple| {
        let finished_at = row.get(column::FINISHED_AT as usize).or_else(now);
        let result = Value::MaybeJson(result.as_ref()).datum();
        let by = Value::Text(&by).datum();
        vec![
            (column::STATE, self::state(state)),
            (column::RESULT, result),
            (column::FINISHED_AT, finished_at),
            (column::RESOLVED_BY, by),
            (column::RESOLVED_AT, now()),
        ]
    };
    call.written(executions.change(&key, row.fence, change), &RESOLVE, values);
    call.seam().kept(Kept::Executions);
    Ok(true)
}
