//! Sessions whose slots and rows do not match, after a restart or the end of a prepared transaction.

use super::dropped::{end_dropped, is_of_dropped};
use crate::base::error::Result;
use crate::base::{limits, settings};
use crate::call::Call;
use crate::pg::clock;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::session::{self, death, ending};
use crate::shmem::databases::{BOOT, PREPARED_ENDED, REVISE};
use crate::shmem::map::Opening;
use crate::shmem::slots::SlotRef;
use crate::shmem::word::State;
use pgrx::pg_sys::INT8OID;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgSqlErrorCode, Uuid};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

static STRAYS: Statement = Statement::reads(include_str!("../../../sql/query/sweep/strays.sql"), &[INT8OID]);

/// Makes slots and rows match again, after a restart or the end of a prepared transaction. Returns the dead sessions,
/// and whether another transaction may have been in the way, so that the worker must come again.
pub(super) fn settle_sessions(call: &Call, flags: u32) -> Result<(Vec<Uuid>, bool)> {
    let sessions = session::all();
    // A session that gets a slot from here on is judged after that.
    call.database.without_slot.store(0, Ordering::Release);
    let (mut dead, mut left, mut without_slot) = (Vec::new(), false, Vec::new());
    for chunk in sessions.chunks(limits::GRANT_BATCH) {
        for row in session::rows(chunk) {
            // A session that was opened before the restart gets its slot here, if no call has needed it yet.
            match call.slot_of(&row) {
                // No slot is free. The session lives by its row, and keeps what it holds until its time is over.
                Err(_) => {
                    let by_row = call.shared.standing(call.home, row.session, row.boot_id, row.ttl_ms);
                    without_slot.push(by_row.until);
                }
                // The session was swept before its row was visible.
                Ok(Some(at)) if call.shared.look(at).is_none_or(|standing| standing.state == State::Gone) => {
                    dead.push((row.session, row.role, row.ttl_ms));
                }
                Ok(Some(at)) => {
                    ending::thaw(call.shared, at);
                    left |= !prove(call, at, flags);
                    // The session may have been granted something by a commit that left no other trace. After a start
                    // there are no traces at all.
                    if flags & REVISE != 0 || flags & BOOT != 0 && row.boot_id != call.shared.boot_id() {
                        call.shared.bump(at);
                    }
                }
                Ok(None) => dead.push((row.session, row.role, row.ttl_ms)),
            }
        }
    }
    come_back_for(call, &without_slot, flags);
    end_orphans(call, &sessions.into_iter().collect());
    death::tidy(call);
    dead.extend(call.db().run(&STRAYS, vec![Value::Long(limits::MAX_DEAD as i64)], |row| (row.uuid(1), 0, 0)));
    // Each dead session gets a dead slot, so that a pass comes back to the session if another transaction has locked
    // rows that it left. A tombstone does not bring a pass back.
    for (session, role, ttl_ms) in &dead {
        left |= call.shared.find(call.home, *session).is_some_and(|at| is_in_state(call, at, State::Gone));
        let (deadline, private, opened_by, frozen) = (clock::now(), false, 0, false);
        let (session, role, ttl_ms) = (*session, *role, *ttl_ms);
        let opening = Opening { session, role, ttl_ms, private, deadline, opened_by, unproven: 0, frozen, most: None };
        // Without a free slot, the next look through the database comes back.
        left |= call.shared.enter(call.home, opening).is_err();
    }
    Ok((dead.into_iter().map(|(session, ..)| session).collect(), left))
}

/// Requests a look through the database for the time when the first living session without a slot dies. `without_slot`:
/// the times until which these sessions live. After a start it also warns how many there are.
fn come_back_for(call: &Call, without_slot: &[u64], flags: u32) {
    let count = u32::try_from(without_slot.len()).unwrap_or(u32::MAX);
    call.database.without_slot.store(count, Ordering::Release);
    let Some(first) = without_slot.iter().min() else { return };
    call.database.flag_at(*first);
    if flags & BOOT != 0 {
        let last = without_slot.iter().max().map_or(0, |last| last.saturating_sub(clock::now()) / 1_000);
        let most = settings::MAX_SESSIONS.get();
        let said =
            format!("eskit_lease: {count} living sessions have no slot among the {most} of eskit_lease.max_sessions");
        let detail = format!(
            "They keep what they hold for {last} ms at most: no heartbeat extends them until places become free."
        );
        ErrorReport::new(PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED, said, "settle_sessions")
            .set_detail(detail)
            .set_hint("Raise eskit_lease.max_sessions and restart the server.")
            .report(pgrx::PgLogLevel::WARNING);
    }
}

fn is_in_state(call: &Call, at: SlotRef, state: State) -> bool {
    call.shared.look(at).is_some_and(|standing| standing.state == state)
}

/// Once all prepared transactions that have granted to a session have ended, lets the server vouch for that session
/// again, from the next confirmation on. Returns false if this call cannot tell yet whether they have ended.
fn prove(call: &Call, at: SlotRef, flags: u32) -> bool {
    if !call.shared.is_promised(at) {
        return true;
    }
    let promised = Guard::Promised(at.session());
    // While this guard is held, no transaction that grants to the session can be prepared.
    let ended = promised.try_lock(Mode::Shared);
    if ended {
        call.shared.unproven_since_prepared(at);
        promised.unlock(Mode::Shared);
    }
    // Other transactions may stay prepared for long; their end calls this again.
    ended || flags & PREPARED_ENDED == 0 && call.shared.watches_prepared(call.database)
}

/// Ends the sessions that have a slot but no row, once the transaction that opened them has ended.
fn end_orphans(call: &Call, with_row: &HashSet<Uuid>) {
    let (mut orphans, mut of_dropped) = (Vec::new(), Vec::new());
    call.shared.each(clock::now(), |at, home, word| {
        let living = matches!(word.state(), State::Alive | State::Frozen);
        if home == call.home && living && !with_row.contains(&at.session()) {
            orphans.push(at);
        } else if is_of_dropped(call, home, word) {
            of_dropped.push(at);
        }
    });
    end_dropped(call, of_dropped);
    for at in orphans {
        if call.shared.erase_rolled_back(at) {
            continue;
        }
        // A session whose open committed after the rows were read has its row now.
        if !call.shared.being_opened(at) && session::row(at.session()).is_none() {
            call.seam().ended(at, false);
        }
    }
}
