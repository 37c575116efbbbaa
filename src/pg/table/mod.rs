//! Rows by key, read and locked without ever waiting and without ever failing.
//!
//! `FOR UPDATE SKIP LOCKED` does not wait either, but under REPEATABLE READ it raises 40001 when the row changed after
//! the snapshot, and it does not see rows that are not committed, where an INSERT would then wait. So rows are locked
//! by their place, which answers "changed" instead of raising; the statement that then changes the row takes its
//! snapshot after the lock, and finds it as it was locked. And keys are looked up in one of two ways ([`Sight`]): by
//! the latest snapshot, which misses nothing that is committed, or with a dirty snapshot, which also sees what others
//! are in the middle of. The latter is no snapshot at all: a row that is moved by an update while the scan is under way
//! may be seen in neither place. It can say "here" and "in flight", never "nowhere".
//!
//! No scan of a table of ours takes predicate locks. Under SERIALIZABLE PostgreSQL takes them for each scan with an
//! MVCC snapshot, and a scan of one index page would make transactions conflict that have no name in common. The locks
//! would protect nothing: they say that what the transaction's snapshot shows has not changed, and no verb reads by
//! that. So a scan runs with a snapshot that shows every version which is not dead to all, and each version is judged
//! by the snapshot that is meant. A scan of a user's table takes predicate locks as ever.
//!
//! Those that are changed most are also written here: see [`mod@write`]. Tables of users are opened by their oid: see
//! [`user`].
//!
//! Files, low to high: raw, tuple, moment, indexes, open, walk, write, user, mod.

pub mod user;

mod indexes;
mod moment;
mod open;
mod raw;
mod tuple;
mod walk;
mod write;

pub use moment::Moment;
pub use open::{Flight, Key, Locked, Sight, Table};
pub use tuple::Tuple;
pub use walk::{Stand, Walk, page_of};
pub use write::Change;
