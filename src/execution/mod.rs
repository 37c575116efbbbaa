//! Executions: work that runs once, under a key.
//!
//! Files, low to high: mod, begin, end.
//!
//! A key has a row from its first attempt on. An attempt belongs to a session and has a fence, as a lease does. Nothing
//! is written while it runs, nor when its session dies. Only its end and the next attempt change the row:
//!
//! | the row says       | its session | `execution_begin` answers                                          |
//! |--------------------|-------------|--------------------------------------------------------------------|
//! | nothing            |             | `first`: the first attempt                                         |
//! | `running`          | the caller  | `running`, and its fence: the reply may have been lost             |
//! | `running`          | living      | `running`                                                          |
//! | `running`          | dead        | `in_doubt`; with `retry_in_doubt`, `first`: another attempt        |
//! | `done`, `failed`   |             | that, and the result                                               |
//! | `retry`            |             | `first`: another attempt                                           |
//! | not committed yet  |             | `running`: the open transaction decides whether it stays           |
//!
//! **Exactly one session begins an attempt.** A call that makes the row of a new key holds the key's stripe meanwhile
//! (see [`crate::lease::grant`]). Under it the call looks again, also at uncommitted rows. A call that begins another
//! attempt locks the row only if it is unchanged since the call read it. Neither call waits for a transaction.
//!
//! The index is unique by key and fence, not by key alone. With a unique key PostgreSQL would check all versions of it
//! at each change, and an old snapshot may keep thousands. Fences grow, so the last version of a key is the one that
//! counts.
//!
//! Another attempt requires that the transaction's snapshot includes the row, as the check of a fence does. Otherwise
//! the attempt would rest on data older than the former attempt. If the transaction rolls back, the attempt has never
//! begun. If it also does the work, work and key stand or fall together.
//!
//! **An attempt ends only under its fence, while its session lives.** The ending transaction holds S(session) in share
//! mode and the row, to its end. Until then no other transaction can end the session, begin another attempt or resolve
//! this one. So an answer that the attempt is finished is true, and the finish of a zombie is refused.

mod begin;
mod end;

use crate::call::Call;
use crate::pg::json::Jsonb;
use crate::pg::spi::Statement;
use crate::pg::table::{Change, Flight, Key, Locked, Moment, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{clock, required};
use crate::session;
use pgrx::Uuid;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::{Datum, FLOAT8OID, INT8OID, ItemPointerData, TIMESTAMPTZOID, TransactionId};

/// Deletes keys that were done or resolved more than so many seconds ago, up to so many rows.
pub static RETIRE: Statement =
    Statement::tidies(include_str!("../../sql/query/execution/retire.sql"), &[FLOAT8OID, INT8OID, TIMESTAMPTZOID]);
/// Returns for how many seconds the oldest such key has been done or resolved.
pub static OLDEST: Statement =
    Statement::reads(include_str!("../../sql/query/execution/oldest.sql"), &[TIMESTAMPTZOID]);

/// How often a key is looked for when a transaction may just be moving its row.
const PROBES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Done,
    Failed,
    /// Free for another attempt.
    Retry,
}

impl State {
    const OUTCOMES: [State; 3] = [State::Done, State::Failed, State::Retry];

    fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Done => "done",
            State::Failed => "failed",
            State::Retry => "retry",
        }
    }

    fn named(name: &str) -> Option<State> {
        State::outcome(name).or_else(|| (name == State::Running.name()).then_some(State::Running))
    }

    fn outcome(name: &str) -> Option<State> {
        State::OUTCOMES.into_iter().find(|state| state.name() == name)
    }
}

struct Execution {
    tid: ItemPointerData,
    state: State,
    session: Uuid,
    role: String,
    fence: i64,
    retry_in_doubt: bool,
    started_at: Option<TimestampWithTimeZone>,
    /// Set only for an attempt that is done.
    result: Option<Jsonb>,
    resolved_by: Option<String>,
    /// The transaction that made this version of the row.
    made_by: TransactionId,
}

impl Execution {
    fn read(row: &Tuple) -> Execution {
        let word = row.required::<Text>(column::STATE as usize);
        let state = required::known("_executions", "state", &word, State::named(&word), State::Running);
        Execution {
            tid: row.tid(),
            state,
            session: row.required(column::SESSION as usize),
            role: row.required::<Text>(column::ROLE as usize).0,
            fence: row.required(column::FENCE as usize),
            retry_in_doubt: row.required(column::RETRY_IN_DOUBT as usize),
            started_at: row.get(9),
            result: if state == State::Done { row.get(11) } else { None },
            resolved_by: row.get::<Text>(13).map(|by| by.0),
            made_by: row.made_by(),
        }
    }

    /// Returns whether the attempt is running and its session lives.
    fn lives(&self, call: &Call) -> bool {
        let alive = || session::row(self.session).is_some_and(|session| call.standing_of(&session).is_some());
        self.state == State::Running && alive()
    }

    /// Says how an attempt that is over has ended.
    fn why_over(&self) -> String {
        match (&self.resolved_by, self.state) {
            (Some(by), _) => format!("It has been resolved as {} by role \"{by}\".", self.state.name()),
            (None, State::Running) => "Its session has ended.".to_owned(),
            (None, State::Done) => "It is done.".to_owned(),
            (None, State::Failed | State::Retry) => "It has failed.".to_owned(),
        }
    }
}

fn now() -> Option<Datum> {
    Some(clock::timestamp().into())
}

/// The state of a key, uncommitted rows of other transactions included.
enum Probe {
    Absent,
    /// Another transaction is making or changing the row.
    InFlight,
    Row(Execution),
}

/// Columns that change after the first attempt has begun.
mod column {
    pub const STATE: i32 = 2;
    pub const SESSION: i32 = 3;
    pub const CONSUMER: i32 = 4;
    pub const ROLE: i32 = 5;
    pub const FENCE: i32 = 6;
    pub const ATTEMPTS: i32 = 7;
    pub const RETRY_IN_DOUBT: i32 = 8;
    pub const STARTED_AT: i32 = 9;
    pub const FINISHED_AT: i32 = 10;
    pub const RESULT: i32 = 11;
    pub const ERROR: i32 = 12;
    pub const RESOLVED_BY: i32 = 13;
    pub const RESOLVED_AT: i32 = 14;
}

struct Executions(Table);

impl Executions {
    fn open() -> Executions {
        Executions(Table::open(c"_executions", c"_executions_pkey"))
    }

    /// Returns the index key of a row. Before 0.3.0 the index had the key alone.
    fn key<'a>(&self, key: &'a str, fence: i64) -> Vec<Key<'a>> {
        let mut columns = vec![Key::Text(key), Key::Long(fence)];
        columns.truncate(self.0.key_columns());
        columns
    }

    fn probe(&self, key: &str) -> Probe {
        for _ in 0..PROBES {
            match self.look(key) {
                Some(probe) => return probe,
                // A dirty scan alone cannot prove that there is no row.
                None if self.0.find(Sight::Latest, &[Key::Text(key)], |_, _| Some(())).is_none() => {
                    return Probe::Absent;
                }
                None => (),
            }
        }
        Probe::InFlight
    }

    /// Returns the state that the last versions of the row show, or `None` if a transaction may just be moving it. If
    /// one version was deleted before the look began, so were all under lower fences: the look skips them.
    fn look(&self, key: &str) -> Option<Probe> {
        let (moment, key, in_order) = (Moment::now(), [Key::Text(key)], self.0.key_columns() > 1);
        let mut walk = self.0.walk_versions(Sight::Dirty, &key).backward();
        let (mut gone, mut moved) = (None::<i64>, false);
        loop {
            let (stand, row) = (walk.one_version(), self.0.row());
            match stand {
                Stand::Row(Flight::None) => return Some(Probe::Row(Execution::read(&row))),
                Stand::Row(_) => return Some(Probe::InFlight),
                Stand::End => break,
                Stand::Stale => (),
            }
            let fence: i64 = row.required(column::FENCE as usize);
            if in_order && gone.is_some_and(|gone| fence < gone) {
                break;
            }
            if moment.has_gone(&row) {
                gone = gone.or(Some(fence));
            } else {
                moved = true;
            }
        }
        (!moved).then_some(Probe::Absent)
    }

    /// Changes the row of a key and a fence, which the caller has locked. Returns `None` if a statement must do it.
    fn change(&self, key: &str, fence: i64, changes: impl Fn(&Tuple) -> Vec<Change>) -> Option<u64> {
        self.0.update_rows(&self.key(key, fence), |row| Some(changes(row)))
    }

    /// Locks the row if it has not changed since it was read and no other transaction has locked it.
    fn lock(&self, row: &Execution) -> bool {
        self.0.lock(row.tid, false) == Locked::Mine
    }
}
