//! What administrators call: privileges, and what SQL sees of shared memory.
//!
//! Files, low to high: privilege, reading, former_names, mod.

pub mod former_names;
pub mod privilege;
pub mod reading;
