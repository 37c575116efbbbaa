//! The lowest floor: errors, settings, intervals as callers give them, and how near words are to each other. It imports
//! nothing of ours.

pub mod error;
pub mod interval;
pub mod limits;
pub mod nearest;
pub mod settings;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
