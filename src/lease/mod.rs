//! Leases of names: places in line, grants under a fence, releases. Each permit of a semaphore is a lease. A lock is a
//! lease with a private session. This folder imports from [`crate::session`] and below.
//!
//! Files, low to high: row, free, answer, declaration, seat, line, candidate, history, fate, kind, fence, declare,
//! refence, semaphore, held, grace, grant, handover, release, refused, names, acquire, lock, verbs, mod.

pub mod acquire;
pub mod answer;
pub mod candidate;
pub mod declaration;
pub mod declare;
pub mod fate;
pub mod fence;
pub mod free;
pub mod grace;
pub mod grant;
pub mod handover;
pub mod held;
pub mod history;
pub mod kind;
pub mod line;
pub mod lock;
mod names;
pub mod refence;
mod refused;
pub mod release;
pub mod row;
pub mod seat;
pub mod semaphore;
pub mod verbs;
