//! Positions: numbers for the rows of an outbox, by which it can be read without gaps, in one order that all readers
//! see.
//!
//! Rows that a sequence numbers become visible out of order: a reader that has gone past 8 never sees the 7 that is
//! committed later. So a position is made of the id of the top-level transaction that draws it, and of a count within
//! that transaction: `(xid + base) << 20 | n`. A snapshot knows its `xmin`: every transaction below has ended, and what
//! it wrote is seen if it has been committed. So [`position_horizon`], `(xmin + base) << 20`, is above all that is
//! settled, and below all that is still to be seen: that is of transactions which were open then, and so are at xmin or
//! above, or which began later. The reader's own transaction is one of the open ones. Ids of subtransactions play no
//! part: those end with their top-level transaction, and are seen with it.
//!
//! It is the snapshot of the statement that asks, whatever the isolation level: rows and horizon are of one and the
//! same snapshot.
//!
//! **base** is added because the ids of another cluster start low, and a dump may be restored there. Two sequences,
//! which a dump holds, are enough: `position_high` is above the high part of all that may have been given, and
//! `position_base` is raised to `position_high` minus the oldest open transaction, before the first position is given
//! where a third, `position_cluster`, tells that all of it is of another history. Every transaction that may draw from
//! then on is at the oldest or above, and so is given more than what was restored. Until it has been raised the horizon
//! is the greater of `position_high` and `xmin + position_base`, which nothing to come is below.
//!
//! **position_cluster** names the history that base belongs to: the cluster, by its identifier, and the extension in
//! it, by `position_origin`, a random number that CREATE EXTENSION draws and no dump holds. So what comes from a dump
//! is never of this history, in whatever order pg_dump has read the sequences. That holds also where the cluster is a
//! physical copy of the dumped one, with the same identifier: the two have gone their own ways since. After pg_upgrade
//! the identifier is another. A standby, what is restored by WAL, and a database made with TEMPLATE are of the same
//! history: ids go on there. What got here otherwise, as by a restore of data alone, may still show by a
//! `position_high` that no transaction of this cluster can have set.
//!
//! **position_high** is raised, 65,536 transactions ahead, before anything beyond it is given. It need not be flushed,
//! nor commits that draw positions: its WAL comes before that of the row, and this before that of any cursor that has
//! seen the row, so that what a crash leaves of these is a beginning. (The id of a transaction whose commit a crash has
//! taken back, as with `synchronous_commit = off`, may come again, on a standby that is promoted without it too. A
//! reader that keeps its position in the same database was set back with it.) Setting a sequence is not undone by a
//! rollback. They are set in an order in which each state between is a valid one: since, base, then whose it is, then
//! high. Once read they are kept in shared memory, so that the common case touches none of them.
//!
//! **position_since**. Base may be raised later too, by [`position_raise`], for rows with greater positions that came
//! from elsewhere. Then transactions are open, or prepared, that have drawn with the base of before. The id of each is
//! below `position_since`: the next id, looked at when no transaction can read the base of before any more. An id is
//! had before the base is read. So a snapshot whose `xmin` is not below it takes the new base for its horizon, and all
//! of those have ended for it. Any other takes no base at all: that is below whatever they may have drawn, and readers
//! wait for them. It is stored first and read last, so that no transaction has a base without it.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing};
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Db, Statement, Value};
use crate::pg::text::role_name;
use crate::pg::{catalog, server, transaction};
use crate::shmem::databases::Database;
use crate::shmem::shared;
use pgrx::pg_sys::{self, INT8OID, REGCLASSOID};
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{Ordering, fence};

/// How many transactions are reserved ahead.
const STEP: i64 = 65_536;
/// Above what positions may be raised: as much again is left.
const HIGHEST: i64 = i64::MAX / 2;

/// How far a crash or a lagging standby may be behind the transaction that has reserved, and not be taken for another
/// history.
const BEHIND: i64 = STEP;

static READ: Statement = Statement::reads(include_str!("../../sql/query/position/read.sql"), &[]);
static SET: Statement = Statement::tidies(include_str!("../../sql/query/position/set.sql"), &[REGCLASSOID, INT8OID]);

thread_local! {
    /// The transaction of this backend that drew last, and how many it has drawn. A rollback to a savepoint takes none
    /// back.
    static DRAWN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// In the library it has the name that versions up to 0.2.0 declare.
#[pg_extern(schema = "eskit_lease", name = "position_next")]
pub fn next_position() -> Result<i64> {
    let shared = enter_writing("position_next()")?;
    let call = Call::open(shared)?;
    let xid = transaction::full_id();
    let count = Some(DRAWN.get()).filter(|drawn| drawn.0 == xid).map_or(0, |drawn| drawn.1);
    let position = position(xid + base(&call, xid), count).ok_or(Error::PositionsFull)?;
    DRAWN.set((xid, count + 1));
    Ok(position)
}

#[pg_extern(schema = "eskit_lease", stable)]
fn position_horizon() -> Result<i64> {
    let home = catalog::home();
    let xmin = widened(transaction::snapshot_xmin());
    // Only a server that gives positions keeps anything in shared memory; a standby, or one without preload, reads what
    // is stored.
    let known = shared().ok().and_then(|shared| shared.known_database(home.database));
    let settled = |base, since| if xmin < since { xmin } else { xmin + base };
    let known = known.and_then(|database| Some((known_base(database, sequence())?, database)));
    let high = match known {
        Some((base, database)) => settled(base, database.position_since.load(Ordering::Relaxed)),
        None => match Stored::read(|statement| Db::open(home).run_as_caller(statement, vec![], |row| row.long(1))) {
            stored if stored.cluster == stored.here() => settled(stored.base, stored.since),
            stored => stored.high.max(xmin + stored.base),
        },
    };
    Ok(position(high, 0).ok_or(Error::PositionsFull)?)
}

#[pg_extern(schema = "eskit_lease")]
fn position_raise(above: Option<i64>) -> Result<bool> {
    let shared = enter_writing("position_raise()")?;
    let above = above.given("above")?;
    if !(0..=HIGHEST).contains(&above) {
        return Err(Error::PositionRaised { given: above, most: HIGHEST }.into());
    }
    let call = Call::open(shared)?;
    Guard::Raise.lock(Mode::Exclusive);
    let raised = raise(&call, (above >> limits::POSITION_BITS) + 1);
    Guard::Raise.unlock(Mode::Exclusive);
    if raised {
        log!("eskit_lease: role \"{}\" raises positions above {above}", role_name(call.caller));
    }
    Ok(raised)
}

/// Raises base, if that is needed for the high part of all positions to come to be `least` or more. Under the guard.
fn raise(call: &Call, least: i64) -> bool {
    // From here on a transaction that draws asks for the guard, and then reads what is stored.
    call.database.positions_of.store(0, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let stored = Stored::of_this_database(call);
    let oldest = oldest();
    let base = if stored.is_of_this_history() { stored.base } else { stored.base.max(stored.high - oldest) };
    if oldest + base >= least {
        return false;
    }
    let (base, next) = (least - oldest, transaction::next_full_id());
    stored.set_base(call, base, Some(next));
    set(call, c"position_high", stored.high.max(next + base + STEP));
    true
}

/// `None` beyond the last.
fn position(high: i64, count: i64) -> Option<i64> {
    let fits = (0..1 << (63 - limits::POSITION_BITS)).contains(&high) && (0..limits::MAX_POSITIONS).contains(&count);
    fits.then_some(high << limits::POSITION_BITS | count)
}

/// The sequence whose state shared memory keeps.
fn sequence() -> u32 {
    catalog::relation(c"position_high").to_u32()
}

/// What is added to the ids of transactions, if it has been read since the server started.
fn known_base(database: &Database, sequence: u32) -> Option<i64> {
    let known = database.positions_of.load(Ordering::Acquire) == sequence;
    known.then(|| database.position_base.load(Ordering::Acquire))
}

/// What is added to the ids of transactions, once positions of this one may be given.
fn base(call: &Call, xid: i64) -> i64 {
    let sequence = sequence();
    let reserved = || {
        let base = known_base(call.database, sequence)?;
        (xid + base < call.database.position_high.load(Ordering::Acquire)).then_some(base)
    };
    reserved().unwrap_or_else(|| {
        // Let go at once, as with fences: it must not wait for a user's transaction.
        Guard::Raise.lock(Mode::Exclusive);
        let base = reserved().unwrap_or_else(|| reserve(call, sequence, xid));
        Guard::Raise.unlock(Mode::Exclusive);
        base
    })
}

fn reserve(call: &Call, sequence: u32, xid: i64) -> i64 {
    let mut stored = Stored::of_this_database(call);
    if !stored.is_of_this_history() {
        // No transaction has drawn here yet, unless it is the past of this very extension that cannot be.
        let since = (stored.cluster == stored.here()).then(transaction::next_full_id);
        stored.since = since.unwrap_or(stored.since);
        stored.base = stored.base.max(stored.high - oldest());
        stored.set_base(call, stored.base, since);
    }
    let high = stored.high.max(xid + stored.base + STEP);
    set(call, c"position_high", high);
    call.database.position_since.store(stored.since, Ordering::Relaxed);
    call.database.position_base.store(stored.base, Ordering::Release);
    call.database.position_high.store(high, Ordering::Release);
    call.database.positions_of.store(sequence, Ordering::Release);
    stored.base
}

fn set(call: &Call, sequence: &'static CStr, value: i64) {
    call.db().execute(&SET, vec![Value::Oid(catalog::needed(sequence).to_u32()), Value::Long(value)]);
}

/// The oldest transaction that is open; who has no id yet gets a greater one.
fn oldest() -> i64 {
    widened(transaction::oldest_open())
}

/// What the sequences say.
#[derive(Default)]
struct Stored {
    base: i64,
    high: i64,
    cluster: i64,
    origin: i64,
    since: i64,
}

impl Stored {
    fn read(run: impl FnOnce(&'static Statement) -> Vec<i64>) -> Stored {
        match run(&READ)[..] {
            [base, high, cluster, origin, since] => Stored { base, high, cluster, origin, since },
            _ => Stored::default(),
        }
    }

    fn of_this_database(call: &Call) -> Stored {
        Stored::read(|statement| call.db().run(statement, vec![], |row| row.long(1)))
    }

    /// Raises base, which is right for this history from then on. `since`: where a transaction may have drawn with
    /// another.
    fn set_base(&self, call: &Call, base: i64, since: Option<i64>) {
        if let Some(since) = since {
            set(call, c"position_since", since);
        }
        set(call, c"position_base", base);
        set(call, c"position_cluster", self.here());
    }

    /// What `position_cluster` is where base is right.
    fn here(&self) -> i64 {
        server::system_identifier() ^ self.origin
    }

    fn is_of_this_history(&self) -> bool {
        self.cluster == self.here() && self.high <= transaction::next_full_id() + self.base + STEP + BEHIND
    }
}

/// A transaction id of a snapshot, with its epoch.
fn widened(xid: pg_sys::TransactionId) -> i64 {
    widen(xid.into_inner(), transaction::next_full_id().cast_unsigned()).cast_signed()
}

/// The last one before `next` with these low bits: a snapshot knows of none that is not given yet, and of none 2^32
/// back.
fn widen(xid: u32, next: u64) -> u64 {
    next - u64::from((next as u32).wrapping_sub(xid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_are_in_order_and_have_an_end() {
        assert_eq!(position(0, 0), Some(0));
        assert_eq!(position(1, 0), Some(1_048_576));
        assert_eq!(position(1, limits::MAX_POSITIONS - 1), Some(2 * 1_048_576 - 1));
        assert_eq!(position(1, limits::MAX_POSITIONS), None);
        assert_eq!(position((1 << 43) - 1, limits::MAX_POSITIONS - 1), Some(i64::MAX));
        assert_eq!(position(1 << 43, 0), None);
        assert_eq!(position(-1, 0), None);
    }

    #[test]
    fn epochs() {
        let epoch = 1u64 << 32;
        assert_eq!(widen(740, 750), 740);
        assert_eq!(widen(750, 750), 750);
        assert_eq!(widen(740, 3 * epoch + 750), 3 * epoch + 740);
        assert_eq!(widen(u32::MAX, 3 * epoch + 3), 3 * epoch - 1);
        assert_eq!(widen(3, 3 * epoch + 3), 3 * epoch + 3);
    }

    proptest! {
        #[test]
        fn what_is_widened_is_what_it_was(next in 1u64 << 32..1 << 43, back in 0..u32::MAX) {
            let xid = next - u64::from(back);
            prop_assert_eq!(widen(xid as u32, next), xid);
        }
    }
}
