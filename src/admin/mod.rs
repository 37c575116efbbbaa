//! What administrators call: privileges, and what SQL sees of shared memory.
//!
//! Files, low to high: privilege, reading, mod.

pub mod privilege;
pub mod reading;
