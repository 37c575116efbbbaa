//! Sessions: one incarnation of a consumer, with one heartbeat for everything that it holds.
//!
//! A session is a row (who, as which role, with which TTL) and a slot in shared memory (until when). Opening writes the
//! row and enters the slot; a heartbeat touches the slot alone. After a restart the slot is made again from the row by
//! whoever needs it first, the worker at the latest: the session is then alive until `t0 + ttl`, as
//! [`crate::shmem::slots`] says; but for one that had expired, and from which somebody has taken something ([`death`]).
//! Where all slots are taken it lives until then, and no longer ([`crate::shmem::stand_in`]).
//!
//! A session ends by its deadline, or early by close. Both make the slot dead, and dead for good; an early end becomes
//! so with the commit of its transaction (see [`crate::seam`]). What rows are left of it is taken away by
//! [`crate::ending::sweep`].
//!
//! The files, each of which imports only from those before it: floor, named, row, death, ending, slot, open,
//! succession, holders, touch.

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
pub use touch::{Touch, touch, touch_holder};
