//! What administrators call: privileges, and what SQL sees of shared memory.

pub mod privilege;
pub mod reading;
