//! Ends and removals: closing, draining and taking over a session, the sweep for the dead, and retention. The SQL
//! functions of sessions stand here, because most of them end something. This folder imports from all floors of
//! concepts.
//!
//! Files, low to high: log, takeover, sweep, retention, close, notify, waiter_pass, waits, verbs, mod.

pub mod close;
pub mod log;
pub mod notify;
pub mod retention;
pub mod sweep;
pub mod takeover;
pub mod verbs;
pub mod waiter_pass;
mod waits;
