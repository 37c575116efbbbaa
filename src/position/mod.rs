//! Positions: numbers for the rows of an outbox. All readers read the rows in the order of these numbers, and miss
//! none.
//!
//! Rows that a sequence numbers become visible out of order: a reader that has gone past 8 never sees a 7 that commits
//! later. So a position is `(xid + base) << 20 | n`: `xid` is the id of the top-level transaction that draws it, `n` a
//! count within that transaction. Ids of subtransactions play no part, since they end with their top-level transaction
//! and become visible with it.
//!
//! A reader reads below [`position_horizon`], which is `(xmin + base) << 20`. Every transaction below a snapshot's
//! `xmin` has ended, and the snapshot shows what it committed. So the horizon is above all settled positions. All
//! positions that may still appear are above it: their transactions, the reader's own included, were open when the
//! snapshot was taken, or began later. The horizon belongs to the snapshot of the statement that asks, whatever the
//! isolation level. So rows and horizon come from one snapshot.
//!
//! **base** is added because a dump may be restored into another cluster, whose ids start low. The sequences that a
//! dump holds are enough for that: `position_high` is above the high part of every position that may have been given.
//! If `position_cluster` shows another history, the first call that draws raises `position_base` to `position_high`
//! minus the oldest open transaction. Every transaction that draws from then on has that id or a greater one, so its
//! positions are greater than all restored ones. Until the raise, the horizon is the greater of `position_high` and
//! `xmin + position_base`. No position to come is below that.
//!
//! **position_cluster** names the history that base belongs to: the cluster's identifier, combined with
//! `position_origin`. That is a random number which CREATE EXTENSION draws and no dump holds. So a dump never matches
//! this history, in whatever order pg_dump reads the sequences. That holds even for a cluster that is a physical copy
//! of the dumped one, with the same identifier. pg_upgrade changes the identifier. A standby, a recovery from WAL and a
//! database made with TEMPLATE keep the history, and their ids go on. A restore of data alone may keep the value of
//! another history. Then `position_high` may still show the other history, by a value that no transaction of this
//! cluster can have set.
//!
//! **position_high** is raised 65,536 transactions ahead, before anything beyond it is given. Neither the raise nor a
//! commit that draws positions needs a flush. The WAL record of `position_high` comes first, then that of the row, then
//! that of a cursor whose reader has seen the row. So a crash may cut off the later ones, but never an earlier one
//! alone. A crash may take back a commit, with `synchronous_commit = off` or by the promotion of a standby that lacks
//! it. The id of that transaction may then be given again. A reader that keeps its position in the same database was
//! set back with the database. A rollback does not undo the setting of a sequence. The sequences are set in an order in
//! which each state between is valid: `since`, `base`, `cluster`, `high`. Shared memory keeps them once they are read,
//! so the common case touches none.
//!
//! **position_since** makes a later raise of base safe. [`position_raise`] does that for rows with greater positions
//! that came from elsewhere. Open and prepared transactions may then have drawn with the former base. Each such
//! transaction has taken its id before it read base. A raise first makes shared memory forget base: from then on a
//! transaction that needs base waits for the guard. Then the raise takes the next id as `position_since`, so all ids
//! that went with the former base are below it. A snapshot whose `xmin` is not below `position_since` knows that all
//! such transactions have ended, and computes its horizon with the new base. Any other snapshot computes its horizon
//! from `xmin` alone, without a base. Such a horizon is not above any position that was drawn by a transaction which is
//! still open in the snapshot, so readers wait for those positions. `position_since` is stored first and read last, so
//! that no transaction has a new base without it.

use crate::base::error::{Error, Result, log};
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
/// The greatest value above which an administrator may raise positions. As many again are left.
const HIGHEST: i64 = i64::MAX / 2;

/// How far a crash or a lagging standby may fall behind the transaction that reserved. A greater distance means another
/// history.
const BEHIND: i64 = STEP;

static READ: Statement = Statement::reads(include_str!("../../sql/query/position/read.sql"), &[]);
static SET: Statement = Statement::tidies(include_str!("../../sql/query/position/set.sql"), &[REGCLASSOID, INT8OID]);

thread_local! {
    /// The transaction of this backend that drew last, and how many positions it has drawn. A rollback to a savepoint
    /// does not lower the count.
    static DRAWN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// The symbol in the library keeps the name that versions up to 0.2.0 declare.
#[pg_extern(schema = "eskit_lease", name = "position_next")]
pub fn next_position() -> Result<i64> {
    let shared = enter_writing("position_next()")?;
    let call = Call::open(shared)?;
    let xid = transaction::full_id();
    let count = Some(DRAWN.get()).filter(|drawn| drawn.0 == xid).map_or(0, |drawn| drawn.1);
    let position = position(xid + base(&call, xid), count).ok_or(Error::PositionsFull)?;
    DRAWN.set((xid, count + 1));
    call.seam().drew(xid);
    Ok(position)
}

#[pg_extern(schema = "eskit_lease", stable)]
fn position_horizon() -> Result<i64> {
    let home = catalog::home();
    let xmin = widened(transaction::snapshot_xmin());
    // Only a server that gives positions keeps them in shared memory. A standby, or a server without preload, reads the
    // sequences.
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
        log(format!("role \"{}\" raises positions above {above}", role_name(call.caller)));
    }
    Ok(raised)
}

/// Raises base, unless all later positions have a high part of `least` or more anyway. The caller holds the guard.
fn raise(call: &Call, least: i64) -> bool {
    // From here on a transaction that draws takes the guard and then reads the sequences.
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

/// Returns `None` beyond the last position.
fn position(high: i64, count: i64) -> Option<i64> {
    let fits = (0..1 << (63 - limits::POSITION_BITS)).contains(&high) && (0..limits::MAX_POSITIONS).contains(&count);
    fits.then_some(high << limits::POSITION_BITS | count)
}

/// Returns the sequence whose state shared memory keeps.
fn sequence() -> u32 {
    catalog::relation(c"position_high").to_u32()
}

/// Returns base, if it has been read since the server started.
fn known_base(database: &Database, sequence: u32) -> Option<i64> {
    let known = database.positions_of.load(Ordering::Acquire) == sequence;
    known.then(|| database.position_base.load(Ordering::Acquire))
}

/// Returns base, once the positions of this transaction are reserved.
fn base(call: &Call, xid: i64) -> i64 {
    let sequence = sequence();
    let reserved = || {
        let base = known_base(call.database, sequence)?;
        (xid + base < call.database.position_high.load(Ordering::Acquire)).then_some(base)
    };
    reserved().unwrap_or_else(|| {
        // The guard is released at once, as with fences: a call that holds it must not wait for a user's transaction.
        Guard::Raise.lock(Mode::Exclusive);
        let base = reserved().unwrap_or_else(|| reserve(call, sequence, xid));
        Guard::Raise.unlock(Mode::Exclusive);
        base
    })
}

fn reserve(call: &Call, sequence: u32, xid: i64) -> i64 {
    let mut stored = Stored::of_this_database(call);
    if !stored.is_of_this_history() {
        // Usually no transaction has drawn here yet. Only if `position_cluster` is right and `position_high` is
        // impossible, some may have drawn with another base.
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

/// Returns the oldest open transaction. A transaction without an id will get a greater one.
fn oldest() -> i64 {
    transaction::oldest_open_id()
}

/// The values of the sequences.
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

    /// Raises base, and marks it as right for this history. `since`: set if transactions may have drawn with another
    /// base.
    fn set_base(&self, call: &Call, base: i64, since: Option<i64>) {
        if let Some(since) = since {
            // Before readers use it: from then on rows may stay unreadable until all transactions before it have ended.
            call.shared.tell_news(call.database, since - 1, |_| true);
            set(call, c"position_since", since);
        }
        set(call, c"position_base", base);
        set(call, c"position_cluster", self.here());
    }

    /// Returns the value of `position_cluster` for which base is right.
    fn here(&self) -> i64 {
        server::system_identifier() ^ self.origin
    }

    fn is_of_this_history(&self) -> bool {
        self.cluster == self.here() && self.high <= transaction::next_full_id() + self.base + STEP + BEHIND
    }
}

/// Adds the epoch to a transaction id of a snapshot.
fn widened(xid: pg_sys::TransactionId) -> i64 {
    transaction::widen(xid.into_inner(), transaction::next_full_id().cast_unsigned()).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::transaction::widen;
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
