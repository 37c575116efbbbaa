//! Privileges, the functions under the views, the former names of functions, and the help.
//!
//! Files, low to high: privilege, reading, former_names, help, mod.

pub mod former_names;
mod help;
pub mod privilege;
pub mod reading;
