//! Rows by key, read and locked without waiting and without failing.
//!
//! `FOR UPDATE SKIP LOCKED` would not wait for locked rows. But under REPEATABLE READ it raises 40001 if the row
//! changed after the snapshot. And it does not see uncommitted rows, for which a later INSERT would wait. So rows are
//! locked by their address, which answers "changed" instead of raising. The statement that then changes the row takes
//! its snapshot after the lock, and finds the row as it was locked.
//!
//! Keys are looked up in one of two ways ([`Sight`]). The latest snapshot misses nothing that is committed. A dirty
//! snapshot also sees what other transactions have not finished. But it is no snapshot at all: if an update moves a row
//! during the scan, both versions may be missed. It can say "here" and "in flight", never "nowhere".
//!
//! No scan of our tables takes predicate locks. Under SERIALIZABLE PostgreSQL takes them for each scan with an MVCC
//! snapshot. Transactions that have no name in common would then conflict because they scan the same index page.
//! Predicate locks guard what the transaction's snapshot shows, and no verb reads by that snapshot. So a scan runs with
//! a snapshot that shows every version that is not dead to all. Then the wanted snapshot judges each version. A scan of
//! a user's table takes predicate locks as usual.
//!
//! The tables that change most are also written here: see [`mod@write`]. Tables of users are opened by their oid: see
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
