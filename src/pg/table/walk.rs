//! Walks: going through rows in the order of an index.
//!
//! While an old snapshot is open, or a prepared transaction is left open, no version of a row goes away. A row that is
//! changed often then has thousands of versions. Two ways avoid reading them. The row of a whole key is read from the
//! end of the index, where its last version is ([`Table::find`]). If many rows may each have old versions, a walk stops
//! after some versions that do not count ([`Stand::Stale`]). The caller then looks that row up in another way, and goes
//! on behind it.

use super::moment::Moment;
use super::open::{Flight, Key, Sight, Table};
use super::raw::{self, FORWARD};
use super::tuple::Tuple;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use pgrx::{Uuid, pg_sys};

/// How many versions a walk skips before it stops; a lookup of one row costs about as much.
const PATIENCE: usize = 8;

/// A scan that goes on when it is asked to.
pub struct Walk<'a> {
    table: &'a Table,
    scan: pg_sys::IndexScanDesc,
    keys: usize,
    direction: pg_sys::ScanDirection::Type,
    /// The snapshot with which the scan runs.
    shown: Box<pg_sys::SnapshotData>,
    /// The snapshot that decides which versions count.
    judge: Option<Judge>,
}

enum Judge {
    Registered(pg_sys::Snapshot),
    Dirty(Box<pg_sys::SnapshotData>),
}

/// Where a walk has come to.
pub enum Stand {
    /// A row that counts, and what other transactions are doing to it.
    Row(Flight),
    /// A version that does not count, after several others.
    Stale,
    End,
}

impl Table {
    /// Visits the rows of a key, or of its first columns, until `visit` has an answer.
    pub fn scan<T>(&self, sight: Sight, key: &[Key], visit: impl FnMut(&Tuple, Flight) -> Option<T>) -> Option<T> {
        self.walk(sight, key).show(visit)
    }

    /// Visits rows from the end of the index, for the row of a whole key. Versions of a row are usually in the order in
    /// which they were made, so the one that counts comes first.
    pub fn find<T>(&self, sight: Sight, key: &[Key], visit: impl FnMut(&Tuple, Flight) -> Option<T>) -> Option<T> {
        self.walk(sight, key).backward().show(visit)
    }

    /// Finds the row of a key whose last column numbers the rows that the key has had, from the end of the index.
    /// Numbers grow: if the row of one number is deleted for good, so are all with lower numbers, and the search skips
    /// them. `number`: the column of the number. The table then stands at the row. Returns what other transactions are
    /// doing to it.
    pub fn find_numbered(&self, sight: Sight, key: &[Key], number: usize) -> Option<Flight> {
        let mut walk = self.walk_versions(sight, key).backward();
        let (mut moment, mut gone) = (None, None::<i64>);
        loop {
            match walk.one_version() {
                Stand::Row(flight) => return Some(flight),
                Stand::End => return None,
                Stand::Stale => (),
            }
            let row = self.row();
            let at: i64 = row.required(number);
            if gone.is_some_and(|gone| at < gone) {
                return None;
            }
            if moment.get_or_insert_with(Moment::now).has_gone(&row) {
                gone = gone.or(Some(at));
            }
        }
    }

    /// Returns a walk, which goes row by row: [`Table::row`] is the current one. A table has one walk at a time.
    pub fn walk<'a>(&'a self, sight: Sight, key: &'a [Key]) -> Walk<'a> {
        self.walk_by(sight, key, false)
    }

    /// Returns a walk that goes version by version. It can stop at versions that do not count, whatever the sight. For
    /// our tables.
    pub fn walk_versions<'a>(&'a self, sight: Sight, key: &'a [Key]) -> Walk<'a> {
        self.walk_by(sight, key, true)
    }

    fn walk_by<'a>(&'a self, sight: Sight, key: &'a [Key], versions: bool) -> Walk<'a> {
        let of = |snapshot_type| Box::new(pg_sys::SnapshotData { snapshot_type, ..Default::default() });
        let dirty = || of(pg_sys::SnapshotType::SNAPSHOT_DIRTY);
        let all = sight != Sight::Dirty || versions;
        let mut shown = if all { of(pg_sys::SnapshotType::SNAPSHOT_NON_VACUUMABLE) } else { dirty() };
        let mut judge = versions.then(|| Judge::Dirty(dirty()));
        // SAFETY: the scan ends before its keys and its snapshots. What a snapshot sees is not dead to all while that
        // snapshot is registered.
        let scan = unsafe {
            self.begin(key, || {
                let snapshot = match sight {
                    Sight::Latest => raw::GetLatestSnapshot(),
                    Sight::Caller => raw::GetActiveSnapshot(),
                    Sight::Dirty => {
                        if versions {
                            shown.vistest = raw::GlobalVisTestFor(self.relation);
                        }
                        return &raw mut *shown;
                    }
                };
                let snapshot = raw::RegisterSnapshot(snapshot);
                judge = Some(Judge::Registered(snapshot));
                if !self.ours {
                    return snapshot;
                }
                shown.vistest = raw::GlobalVisTestFor(self.relation);
                &raw mut *shown
            })
        };
        Walk { table: self, scan, keys: key.len(), direction: FORWARD, shown, judge }
    }
}

impl Walk<'_> {
    /// Turns the walk around: it begins at the end of the index.
    pub fn backward(mut self) -> Self {
        self.direction = pg_sys::ScanDirection::BackwardScanDirection;
        self
    }

    fn show<T>(mut self, mut visit: impl FnMut(&Tuple, Flight) -> Option<T>) -> Option<T> {
        let mut answer = None;
        while answer.is_none()
            && let Some(flight) = self.next()
        {
            answer = visit(&self.table.row(), flight);
        }
        answer
    }

    /// Goes on to the next row. Returns what other transactions are doing to it.
    pub fn next(&mut self) -> Option<Flight> {
        match self.advance(usize::MAX) {
            Stand::Row(flight) => Some(flight),
            Stand::Stale | Stand::End => None,
        }
    }

    /// Goes on to the next row. Stops early at a version that does not count, once it has passed several of these.
    pub fn step(&mut self) -> Stand {
        self.advance(PATIENCE)
    }

    /// Goes on to the next version.
    pub fn one_version(&mut self) -> Stand {
        self.advance(1)
    }

    fn advance(&mut self, patience: usize) -> Stand {
        let Walk { table, scan, judge, direction, .. } = self;
        let judge = match judge {
            Some(Judge::Dirty(snapshot)) => Some(&raw mut **snapshot),
            Some(Judge::Registered(snapshot)) => table.ours.then_some(*snapshot),
            None => None,
        };
        // SAFETY: the scan and its snapshots are open; the slot holds a row of the relation, whose access method is
        // complete
        let stand = unsafe {
            let sees = (*(*table.relation).rd_tableam).tuple_satisfies_snapshot;
            guarded(|| {
                let mut stale = 0;
                loop {
                    if !raw::index_getnext_slot(*scan, *direction, table.slot) {
                        return Stand::End;
                    }
                    let (Some(judge), Some(sees)) = (judge, sees) else { return Stand::Row(Flight::None) };
                    if sees(table.relation, table.slot, judge) {
                        return Stand::Row(Flight::None);
                    }
                    stale += 1;
                    if stale == patience {
                        return Stand::Stale;
                    }
                }
            })
        };
        match stand {
            Stand::Row(_) => Stand::Row(self.flight()),
            other => other,
        }
    }

    /// Returns what other transactions are doing to the current row. A dirty snapshot names the transaction that is
    /// inserting, updating or deleting the row that it has just judged.
    fn flight(&self) -> Flight {
        let asked = match &self.judge {
            Some(Judge::Dirty(snapshot)) => snapshot,
            _ => &self.shown,
        };
        if asked.xmin != pg_sys::InvalidTransactionId {
            Flight::Inserting
        } else if asked.xmax != pg_sys::InvalidTransactionId {
            Flight::Changing
        } else {
            Flight::None
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: begun by walk_by()
            unsafe {
                guarded(|| {
                    self.table.end(self.scan, self.keys);
                    if let Some(Judge::Registered(snapshot)) = self.judge {
                        raw::UnregisterSnapshot(snapshot);
                    }
                });
            }
        }
    }
}

/// Returns up to `most` rows of some sessions, after the first `skip`, from a table whose index begins with the
/// session.
pub fn page_of<T>(
    table: &Table,
    sessions: &[Uuid],
    most: usize,
    skip: usize,
    read: impl Fn(&Tuple) -> Option<T>,
) -> Vec<T> {
    let (mut rows, mut passed) = (Vec::new(), 0);
    for session in sessions {
        let full = most == 0
            || table
                .scan(Sight::Latest, &[Key::Uuid(*session)], |row, _| {
                    passed += 1;
                    if passed > skip {
                        rows.extend(read(row));
                    }
                    (rows.len() == most).then_some(())
                })
                .is_some();
        if full {
            break;
        }
    }
    rows
}
