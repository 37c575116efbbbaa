//! Liveness: the only shared memory. Which session is alive, until when, and what the worker has to look at. All of it
//! may be lost with the server: rows say what is owned, and a session that was alive stays so for one TTL after a
//! restart (see [`slots`]), or for what it had left at an orderly stop (see [`left`]).
//!
//! # Who may touch what
//!
//! * A **slot** (one session, 64 bytes) is a set of atomics. Its [`word`] changes by compare-and-swap only, and holds
//!   the whole decision whether the session lives; that is why a heartbeat takes no lock. The other fields are written
//!   before the slot gets a living word and do not change until it is free, save some numbers, each of which changes by
//!   itself: the revision, the cap, what the session waits for, what is unproven of it, and the backend that it is
//!   attached to.
//! * **Reuse.** A slot is free for the next session as soon as nothing needs it (see [`slots`]), while processes may
//!   still refer to it for the former. To write, a process reads the word or the number, compares the session's uuid,
//!   and only then swaps. Word and numbers contain a count of the slot's sessions, so that the swap fails if the slot
//!   has changed hands since the read (see [`counted`]). To read, a process reads, and compares the uuid after that
//!   ([`Shared::is_still`](slots)). Until its slot is needed an ended session leaves a word there: a client is told
//!   that its session has ended, and not that there is none.
//! * Which slots are due is found by the words of **blocks** of them (see [`block`]), which heartbeats leave alone.
//! * **Uuid to slot** is a partitioned hash table of PostgreSQL's, each partition under its own LWLock (`Lock::Map`).
//!   Reclaiming a slot and entering one happen under the partition's exclusive lock, so there is never a slot without
//!   its entry.
//! * **Free slots** and the table of databases are under `Lock::Alloc`, the **dirty ring** under `Lock::Ring`, the
//!   **floors** of queues of work items, and their **spans**, under `Lock::Floors`.
//! * No two of these locks are held together, and none over anything that can raise: no allocation by PostgreSQL, no
//!   catalog.
//!
//! # Files
//!
//! `parts` has the plain data that lies in shared memory, and [`Shared`] says where each part is. A file of one concept
//! works with its part by methods of [`Shared`]. `start` has all parts made.
//!
//! Files, low to high: word, counted, pace, latch, beginning, ring, leftover, block, slot, parts, databases, shared,
//! standing, slots, surveyed, floors, spans, hunger, dirty, confirm, map, stand_in, attach, wait, room, places, left,
//! start, mod.

pub mod attach;
pub mod beginning;
mod block;
pub mod confirm;
mod counted;
pub mod databases;
pub mod dirty;
pub mod floors;
pub mod hunger;
mod latch;
mod left;
mod leftover;
pub mod map;
pub mod pace;
mod parts;
pub mod places;
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
pub mod wait;
pub mod word;

pub use latch::{my_latch, set_latch};
pub use shared::{Shared, shared};
pub use start::install;
