//! One connection to a system, which repeats one operation.

use std::pin::Pin;

use clap::ValueEnum;

use crate::measure::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Operation {
    /// Keeps a session or a held name alive
    Heartbeat,
    /// Acquires a new name and releases it
    AcquireRelease,
    /// The holder asks again
    Reacquire,
}

pub type Step<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// One connection, which repeats the operation. A step fails if the answer is not the expected one.
pub trait Worker: Send {
    fn step(&mut self) -> Step<'_>;
}
