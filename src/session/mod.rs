//! Sessions: one incarnation of a consumer, with one heartbeat for everything that it holds.
//!
//! A session is a row (its consumer, role and TTL) and a slot in shared memory (until when it lives). Opening writes
//! the row and enters the slot; a heartbeat touches the slot alone. After a restart the first call that needs the
//! session makes its slot again from the row, the worker at the latest. The session is then alive until `t0 + ttl`, as
//! [`crate::shmem::slots`] says, unless it had expired and another session has taken something from it ([`death`]).
//! Where all slots are taken it lives until then, and no longer ([`crate::shmem::stand_in`]).
//!
//! A session ends by its deadline, or early by close. Both make the slot dead, for good; an early end does so with the
//! commit of its transaction (see [`crate::seam`]). [`crate::ending::sweep`] takes away the rows that are left of it.
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
pub use row::{New, SessionRow, all, delete, drain, lock_row, lock_rows, row, rows, table};
pub use slot::{authorize, standing};
pub use touch::{Touch, ended, touch, touch_holder};
