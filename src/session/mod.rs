//! Sessions: a session is one incarnation of a consumer, with one heartbeat for everything that it holds.
//!
//! A session is a row (its consumer, role and TTL) and a slot in shared memory (its deadline). Opening writes the row
//! and makes the slot; a heartbeat changes the slot alone. After a restart the first call that needs the session makes
//! the slot again from the row; if no call does, the worker does. The session then lives until `t0 + ttl`, as
//! [`crate::shmem::slots`] says. A session that had expired before the restart stays dead if something had already been
//! taken from it ([`death`]). If all slots are taken, the session lives until that time, and no heartbeat extends it
//! ([`crate::shmem::stand_in`]).
//!
//! A session ends at its deadline, or earlier by a close or a take-over. Each makes the slot dead for good; a close or
//! take-over does so when its transaction commits (see [`crate::seam`]). [`crate::ending::sweep`] takes away the
//! remaining rows.
//!
//! Files, low to high: floor, named, row, death, ending, slot, open, succession, holders, touch, mod.

pub mod death;
pub mod ending;
pub mod floor;
pub mod holders;
pub mod named;
mod open;
mod row;
mod slot;
pub mod succession;
mod touch;

pub use open::{open, wall_clock};
pub use row::{New, SessionRow, all, delete, drain, lock_row, lock_rows, of_request, row, rows, table};
pub use slot::{authorize, ended_at, standing};
pub use touch::{Touch, UNCOMMITTED, ended, touch, touch_holder};
