//! Sweeping: one bounded pass over what a database must judge or take away. The worker runs it, and an administrator
//! may.
//!
//! No answer depends on a pass: a lease of a dead session is free in every query. A pass makes hand-overs prompt and
//! deletes what the dead have left. First dead sessions leave their groups, and leases that are waited for are handed
//! over. Then come their other leases, their claims of items and their places in line. The session's row comes last,
//! and only while G of the session is held exclusively. Then no transaction is granting to the session, and none can
//! grant it a lease later.
//!
//! A pass skips what other transactions have locked, and tries it again later. It is bounded by the leases that it
//! takes and by the sessions that it looks at.
//!
//! Files, low to high: waited, dropped, done, dissolve, settle, pass, mod.

pub mod waited;

mod dissolve;
mod done;
mod dropped;
mod pass;
mod settle;

pub use dissolve::dissolve;
pub use done::Pass;
pub use pass::pass;
