//! Sweeping: one bounded pass over what a database must judge or take away. The worker runs it, and an administrator
//! may.
//!
//! No answer depends on a pass: a lease of a dead session is free in every query. A pass makes hand-overs prompt and
//! deletes what the dead have left. First it hands over the leases that are waited for. Then come the other leases and
//! the places of dead sessions. The session's row comes last, and only while G of the session is held exclusively. Then
//! no transaction is granting to the session, and none can grant it a lease later.
//!
//! A pass skips what other transactions have locked, and tries it again later. It is bounded by leases, not by
//! sessions.
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
