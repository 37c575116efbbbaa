//! What administrators call: privileges, and views of shared memory in SQL.
//!
//! Files, low to high: privilege, reading, former_names, mod.

pub mod former_names;
pub mod privilege;
pub mod reading;
