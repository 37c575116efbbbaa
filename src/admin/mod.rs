//! What administrators call: privileges, and views of shared memory in SQL; and the help for all.
//!
//! Files, low to high: privilege, reading, former_names, help, mod.

pub mod former_names;
mod help;
pub mod privilege;
pub mod reading;
