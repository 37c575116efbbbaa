//! The lowest floor: errors, settings, and intervals as callers give them. It imports nothing of ours.

pub mod error;
pub mod interval;
pub mod limits;
pub mod settings;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
