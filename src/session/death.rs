//! Death that outlasts the server. An expired session is dead in shared memory, but its row stands until a sweep has
//! taken away all that it had, and a restart gives each session with a row its time to live anew. So a transaction that
//! takes something from a dead session writes a row here: the session stays dead.
//!
//! So does a transaction that grants to others because a session is dead, though that session keeps what it has: a
//! permit, as the holder of another slot is gone ([`crate::lease::semaphore`]); a partition's target, as a member is;
//! what is on the other side of a bridge, as the holder is; a declared name, as a waiter is; the name of a consumer to
//! a session that takes over. A refusal records nothing. Nor is a waiter recorded that was passed over: it has lost its
//! turn, and keeps its place.
//!
//! The record has a table of its own, because the session's row may be in another transaction's hands; and no unique
//! key, because the writer waits for no other: two rows say the same. They go with the session's row. No other session
//! sees what a prepared transaction has written until it has ended: there
//! [`Guard::Taken`](crate::pg::guard::Guard::Taken) keeps the session dead.

use super::row::rows;
use crate::call::Call;
use crate::pg::catalog;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Key, Sight, Table};
use crate::seam;
use pgrx::pg_sys::{Oid, UUIDARRAYOID, UUIDOID};
use pgrx::{IntoDatum, Uuid};

static INSERT: Statement = Statement::writes(include_str!("../../sql/query/death/insert.sql"), &[UUIDOID]);
static FORGET: Statement = Statement::tidies(include_str!("../../sql/query/death/forget.sql"), &[UUIDARRAYOID]);
static TIDY: Statement = Statement::tidies(include_str!("../../sql/query/death/tidy.sql"), &[]);

/// Returns the table; version 0.1.0 had none.
fn table() -> Option<Table> {
    let is_there = catalog::relation(c"_deaths") != Oid::INVALID;
    is_there.then(|| Table::open(c"_deaths", c"_deaths_session"))
}

/// Returns whether no other session, such as one that runs VACUUM FULL, has any table locked that taking from the dead
/// needs.
pub fn can_record() -> bool {
    catalog::lock_all(&[c"_deaths", c"_successions"])
}

fn is_in(table: &Table, session: Uuid) -> bool {
    table.scan(Sight::Latest, &[Key::Uuid(session)], |_, _| Some(())).is_some()
}

/// Returns whether the session is dead, whatever its row says.
pub fn is_recorded(session: Uuid) -> bool {
    table().is_some_and(|table| is_in(&table, session))
}

/// Has dead sessions stay dead, if this commits. A session without a row has nothing to be revived.
pub fn record(call: &Call, sessions: &[Uuid]) {
    if sessions.is_empty() {
        return;
    }
    let Some(table) = table() else { return };
    for row in rows(sessions) {
        if !is_in(&table, row.session) && !table.try_insert(&[row.session.into_datum()]) {
            call.db().execute(&INSERT, vec![Value::Uuid(row.session)]);
        }
    }
}

/// Forgets sessions whose rows are gone.
pub fn forget(call: &Call, sessions: &[Uuid]) {
    let Some(table) = table() else { return };
    let forgotten = sessions.iter().map(|session| table.delete_rows(&[Key::Uuid(*session)])).sum();
    call.written(forgotten, &FORGET, vec![Value::Uuids(sessions)]);
}

/// The same for sessions whose rows went while another transaction took from them.
pub fn tidy(call: &Call) {
    if table().is_some() {
        call.db().execute(&TIDY, vec![]);
    }
}

impl Call {
    /// Records that something of dead sessions has been taken: they stay dead, over a restart too.
    pub fn taken_from(&self, sessions: &[Uuid]) {
        debug_assert!(!sessions.iter().any(|session| self.lives(*session)), "what is taken is a dead session's");
        record(self, &self.seam().taken_from(sessions));
    }
    /// Returns whether the slot of a session lives, and this transaction has not ended it.
    fn lives(&self, session: Uuid) -> bool {
        let standing = self.shared.find(self.home, session).and_then(|at| self.shared.look(at));
        standing.is_some_and(|standing| standing.alive()) && !seam::has_ended(session)
    }
}
