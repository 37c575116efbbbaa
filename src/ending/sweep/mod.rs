//! Sweeping: one bounded pass over what a database has to have judged or taken away. The worker runs it, and so may an
//! administrator.
//!
//! Nothing here is needed for an answer to be right: a lease of a dead session is free in every query. A pass makes
//! hand-overs prompt and takes dead rows away: first what is waited for, then the other leases and the places of dead
//! sessions. The session's row comes last, and only under its G lock, held exclusively: then no transaction grants to
//! the session, and no lease can come after.
//!
//! What others have locked is skipped and tried again later. A pass is bounded by leases, not by sessions.
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
