//! One connection to a system, which does one operation again and again.

use std::pin::Pin;

use clap::ValueEnum;

use crate::measure::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Operation {
    /// A session, or what is held, is kept
    Heartbeat,
    /// A new name is acquired, and released
    AcquireRelease,
    /// The holder asks again
    Reacquire,
}

pub type Step<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// One connection, which does the operation again and again, and fails where it was not answered as it should.
pub trait Worker: Send {
    fn step(&mut self) -> Step<'_>;
}
