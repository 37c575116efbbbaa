//! Deaths that outlast the server. An expired session is dead in shared memory, but its row stays until a sweep has
//! taken away all that the session had. A restart gives each session that has a row a new time to live. So a
//! transaction that takes something from a dead session writes a row here, which keeps the session dead.
//!
//! A transaction also writes a row here if it does something that only this death allows, even if the dead session
//! keeps what it has. The transaction
//!
//! * grants a permit that is free only because the holder of another permit is dead ([`crate::lease::semaphore`]);
//! * gives a partition another target, because the member is dead;
//! * lets the old workers of a bridge go on, because the lease's holder is dead;
//! * declares a name, or drops its declaration, because all sessions that waited for it are dead;
//! * lets a new session take over a consumer's name, because the former session is dead.
//!
//! A refusal records nothing. A grant does not record a dead waiter that it passes over: that waiter has lost its turn,
//! but keeps its place.
//!
//! The record has a table of its own, because another transaction may have the session's row locked. The table has no
//! unique key, because a writer must wait for no other writer; two rows of one session are harmless. Rows of deaths are
//! deleted with the session's row. Other sessions cannot see the rows of a prepared transaction. Until it ends,
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

/// Returns the table of deaths; `None` in a database of version 0.1.0, which has none.
fn table() -> Option<Table> {
    let is_there = catalog::relation(c"_deaths") != Oid::INVALID;
    is_there.then(|| Table::open(c"_deaths", c"_deaths_session"))
}

/// Locks the tables that are needed to take something from dead sessions. Returns false if another process, such as
/// VACUUM FULL, has one of them locked.
pub fn can_record() -> bool {
    catalog::lock_all(&[c"_deaths", c"_successions"])
}

fn is_in(table: &Table, session: Uuid) -> bool {
    table.scan(Sight::Latest, &[Key::Uuid(session)], |_, _| Some(())).is_some()
}

/// Returns whether a death of the session is recorded; then the session is dead, whatever its row says.
pub fn is_recorded(session: Uuid) -> bool {
    table().is_some_and(|table| is_in(&table, session))
}

/// Records the deaths of sessions, if this transaction commits. Skips a session without a row: no restart can revive
/// it.
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

/// Deletes the recorded deaths of sessions whose rows are deleted.
pub fn forget(call: &Call, sessions: &[Uuid]) {
    let Some(table) = table() else { return };
    let forgotten = sessions.iter().map(|session| table.delete_rows(&[Key::Uuid(*session)])).sum();
    call.written(forgotten, &FORGET, vec![Value::Uuids(sessions)]);
}

/// Deletes recorded deaths of sessions that have no row: another transaction took something from them while the row was
/// being deleted.
pub fn tidy(call: &Call) {
    if table().is_some() {
        call.db().execute(&TIDY, vec![]);
    }
}

impl Call {
    /// Records that this transaction takes something from dead sessions. They stay dead, even after a restart.
    pub fn taken_from(&self, sessions: &[Uuid]) {
        debug_assert!(!sessions.iter().any(|session| self.lives(*session)), "what is taken is a dead session's");
        record(self, &self.seam().taken_from(sessions));
    }

    /// Returns whether the slot of a session lives, and the session has been ended neither by this transaction nor by a
    /// prepared one. (After COMMIT PREPARED the slot stays frozen until a call or the sweep looks.)
    fn lives(&self, session: Uuid) -> bool {
        let standing = self.shared.find(self.home, session).and_then(|at| self.shared.look(at));
        standing.is_some_and(|standing| standing.alive()) && !seam::has_ended(session) && !rows(&[session]).is_empty()
    }
}
