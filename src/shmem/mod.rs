//! Liveness: the only shared memory. It holds which session is alive and until when, and what the worker must look at.
//! All of it may be lost with the server: rows say what is owned. After a restart a session that was alive lives for
//! one TTL (see [`slots`]); after an orderly stop, for its remaining TTL (see [`left`]).
//!
//! # Who may touch what
//!
//! * A **slot** (one session, 64 bytes) is a set of atomics. Its [`word`] alone decides whether the session lives, and
//!   changes by compare-and-swap only; that is why a heartbeat takes no lock. The other fields are written before the
//!   slot gets a living word, and stay until it is free. A few numbers of the slot do change, each by itself: the
//!   revision, the cap, what the session waits for, since when it is unproven, and the backend to which it is attached.
//! * **Reuse.** A slot may get its next session as soon as nothing needs it (see [`slots`]). Processes may still refer
//!   to it for the former session. So a writer reads the word or the number, compares the session's uuid, and only then
//!   swaps. Word and numbers contain a count of the slot's sessions: the swap fails if the slot has changed hands since
//!   the read (see [`counted`]). A reader reads first, and compares the uuid after that ([`Shared::is_still`](slots)).
//!   The word of an ended session stays until its slot is reclaimed: by the launcher some seconds later, or sooner if a
//!   new session needs the slot. Until then a client is told that its session has ended, not that there is none.
//! * The words of **blocks** of slots tell which slots are due (see [`block`]). Heartbeats leave them alone.
//! * **Uuid to slot** is a partitioned hash table of PostgreSQL's, each partition under its own LWLock (`Lock::Map`). A
//!   slot is reclaimed, and a session entered, under the partition's exclusive lock. So no slot is ever without its
//!   entry.
//! * `Lock::Alloc` guards the **free slots** and the table of databases, `Lock::Ring` the **dirty ring**.
//!   `Lock::Floors` guards the **floors** and the **spans** of queues of work items.
//! * A process never holds two of these locks together. While it holds one it calls nothing that can raise: no
//!   allocation by PostgreSQL, no catalog.
//!
//! # Files
//!
//! `parts` has the plain data that lies in shared memory, and [`Shared`] says where each part is. Each other file has
//! one concept, and reaches its part by methods of [`Shared`]. `start` makes all parts.
//!
//! Files, low to high: word, counted, counters, pace, latch, beginning, watch, waiting, ring, refusals, leftover,
//! block, slot, parts, databases, told, shared, refused, standing, slots, surveyed, floors, spans, hunger, dirty,
//! prepared, confirm, map, stand_in, attach, news, wait, room, entries, left, start, mod.

pub mod attach;
pub mod beginning;
mod block;
pub mod confirm;
mod counted;
pub mod counters;
pub mod databases;
pub mod dirty;
pub mod entries;
pub mod floors;
pub mod hunger;
mod latch;
mod left;
mod leftover;
pub mod map;
pub mod news;
pub mod pace;
mod parts;
pub mod prepared;
pub mod refusals;
mod refused;
#[cfg(feature = "pg_test")]
#[path = "../../pg_test/reuse.rs"]
mod reuse;
mod ring;
mod room;
mod shared;
mod slot;
pub mod slots;
pub mod spans;
pub mod stand_in;
pub mod standing;
mod start;
pub mod surveyed;
mod told;
pub mod wait;
mod waiting;
mod watch;
pub mod word;

pub use latch::{my_latch, set_latch};
pub use shared::{Shared, shared};
pub use start::install;
