//! Beginning an attempt.

use super::{Execution, Executions, Probe, State, column};
use crate::base::error::{Error, Result};
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::keys;
use crate::lease::acquire::grantee;
use crate::lease::fence;
use crate::pg::guard::{Guard, Mode};
use crate::pg::json::Jsonb;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::Tuple;
use crate::pg::text::{Text, role_name};
use crate::pg::{clock, row, transaction};
use crate::session::{self, SessionRow, touch};
use crate::shmem::counters::Counter;
use crate::shmem::slots::SlotRef;
use pgrx::Uuid;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::{BOOLOID, INT8OID, TEXTOID, UUIDOID};
use pgrx::prelude::*;

static BEGIN: Statement = Statement::writes(
    include_str!("../../sql/query/execution/begin.sql"),
    &[TEXTOID, UUIDOID, TEXTOID, TEXTOID, BOOLOID],
);
static AGAIN: Statement = Statement::writes(
    include_str!("../../sql/query/execution/again.sql"),
    &[TEXTOID, UUIDOID, TEXTOID, TEXTOID, BOOLOID, INT8OID],
);

/// How often a call tries to lock a stripe, half a millisecond apart: five seconds in all. Another call holds the
/// stripe only while it runs, possibly for another key. If a call gave up early, it would report that an attempt is in
/// flight although no session runs the key. Only a call that hangs makes others use up all tries.
const STRIPE_TRIES: u32 = 10_000;

row::composite! {
    /// The answer of execution_begin.
    Answer = "eskit_lease.execution_answer" {
        first: bool,
        state: Text,
        fence: Option<i64>,
        result: Option<Jsonb>,
        started_at: Option<TimestampWithTimeZone>,
    } added {
        revision: Option<i64>,
    }
}

impl Answer {
    fn running(first: bool, fence: Option<i64>, started_at: Option<TimestampWithTimeZone>) -> Answer {
        Answer { first, state: State::Running.name().into(), fence, result: None, started_at, revision: None }
    }

    fn in_flight() -> Answer {
        Answer::running(false, None, None)
    }

    fn of(row: Execution, state: &'static str) -> Answer {
        Answer { state: state.into(), result: row.result, ..Answer::running(false, None, row.started_at) }
    }
}

/// Begins an attempt of a key. `before`: the fence of the former attempt, if the key has a row; the caller has then
/// locked that row. Otherwise the caller holds the key's stripe.
fn start(
    call: &Call,
    executions: &Executions,
    me: &SessionRow,
    key: &str,
    retry_in_doubt: bool,
    before: Option<i64>,
) -> Result<Answer> {
    let role = role_name(pg_sys::Oid::from(me.role));
    let mut values = vec![
        Value::Text(key),
        Value::Uuid(me.session),
        Value::Text(&me.consumer),
        Value::Text(&role),
        Value::Bool(retry_in_doubt),
    ];
    let by_place = before.and_then(|before| again(call, executions, (me, &role), (key, before), retry_in_doubt));
    values.extend(before.map(Value::Long));
    let (fence, started_at) = match by_place {
        Some(begun) => {
            AGAIN.is_done();
            begun
        }
        None => {
            let statement = if before.is_none() { &BEGIN } else { &AGAIN };
            let begun = call.db().run(statement, values, |row| (row.long(1), row.get(2))).pop();
            begun.ok_or_else(|| Error::AttemptInFlight { key: key.to_owned() })?
        }
    };
    debug_assert!(before.is_none_or(|before| before < fence), "an attempt has a greater fence than the one before");
    fence::hold_back(call, &call.database.fences, fence);
    call.seam().count(Counter::ExecutionsBegun, 1);
    Ok(Answer::running(true, Some(fence), started_at))
}

/// Begins another attempt by changing the row at its ctid. Of the former attempt, only the number of attempts is kept.
/// Returns `None` if a statement must do it.
fn again(
    call: &Call,
    executions: &Executions,
    (me, role): (&SessionRow, &str),
    (key, before): (&str, i64),
    retry_in_doubt: bool,
) -> Option<(i64, Option<TimestampWithTimeZone>)> {
    let (fence, started_at) = (fence::next(call), clock::timestamp());
    let change = |row: &Tuple| {
        let attempts = row.required::<i32>(column::ATTEMPTS as usize).saturating_add(1);
        let emptied = [column::FINISHED_AT, column::RESULT, column::ERROR, column::RESOLVED_BY, column::RESOLVED_AT];
        let set = [
            (column::STATE, Value::Text(State::Running.name()).datum()),
            (column::SESSION, Value::Uuid(me.session).datum()),
            (column::CONSUMER, Value::Text(&me.consumer).datum()),
            (column::ROLE, Value::Text(role).datum()),
            (column::FENCE, Some(fence.into())),
            (column::ATTEMPTS, Some(attempts.into())),
            (column::RETRY_IN_DOUBT, Some(retry_in_doubt.into())),
            (column::STARTED_AT, Some(started_at.into())),
        ];
        set.into_iter().chain(emptied.map(|column| (column, None))).collect()
    };
    executions.change(key, before, change)?;
    Some((fence, started_at.try_into().ok()))
}

/// Tries to lock a stripe, which other calls hold for a moment. Returns whether it is locked.
fn had(stripe: Guard) -> bool {
    (0..STRIPE_TRIES).any(|_| {
        let had = stripe.try_lock(Mode::Exclusive);
        if !had {
            clock::pause(500);
            pgrx::check_for_interrupts!();
        }
        had
    })
}

/// Returns whether this transaction's snapshot includes the end of the former attempt. Under READ COMMITTED each
/// statement has a snapshot of its own, so the next one includes it.
fn is_seen(row: &Execution) -> bool {
    transaction::sees(row.made_by)
}

fn begin(call: &Call, me: SlotRef, key: &str, retry_in_doubt: bool) -> Result<Answer> {
    let executions = Executions::open();
    let starter = || -> Result<SessionRow> {
        let session = grantee(call, me).map_err(session::ended)?;
        fence::raise(call);
        Ok(session)
    };
    loop {
        pgrx::check_for_interrupts!();
        let row = match executions.probe(key) {
            Probe::InFlight => return Ok(Answer::in_flight()),
            Probe::Row(row) => row,
            Probe::Absent => {
                let session = starter()?;
                let stripe = Guard::Stripe(keys::stripe(key, 0));
                if !had(stripe) {
                    return Err(Error::AttemptInFlight { key: key.to_owned() }.into());
                }
                let absent = matches!(executions.probe(key), Probe::Absent);
                let answer = absent.then(|| start(call, &executions, &session, key, retry_in_doubt, None));
                stripe.unlock(Mode::Exclusive);
                match answer {
                    Some(answer) => return answer,
                    None => continue,
                }
            }
        };
        return match row.state {
            State::Running if row.session == me.session() => {
                let fence = Some(row.fence);
                Ok(Answer { fence, ..Answer::of(row, State::Running.name()) })
            }
            State::Running if row.lives(call) => Ok(Answer::of(row, State::Running.name())),
            State::Running if !row.retry_in_doubt => Ok(Answer::of(row, "in_doubt")),
            state @ (State::Done | State::Failed) => Ok(Answer::of(row, state.name())),
            State::Running | State::Retry => {
                let session = starter()?;
                if !executions.lock(&row) {
                    return Ok(Answer::in_flight());
                }
                if !is_seen(&row) {
                    return Err(Error::AttemptNewer { key: key.to_owned() }.into());
                }
                if row.state == State::Running {
                    call.taken_from(&[row.session]);
                }
                start(call, &executions, &session, key, retry_in_doubt, Some(row.fence))
            }
        };
    }
}

#[pg_extern(schema = "eskit_lease")]
fn execution_begin(
    key: Option<Text>,
    session: Option<Uuid>,
    retry_in_doubt: default!(Option<bool>, "false"),
) -> Result<Answer> {
    let shared = enter_writing("execution_begin()")?;
    let key = text_arg("key", key)?;
    let session = session.given("session")?;
    let retry_in_doubt = retry_in_doubt.given("retry_in_doubt")?;
    let touch = touch(shared, session)?;
    let me = touch.acquirer().map_err(session::ended)?;
    Ok(Answer { revision: touch.revision(), ..begin(&Call::open(shared)?, me, &key, retry_in_doubt)? })
}
