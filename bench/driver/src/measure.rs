//! Shared by all measurements.

use std::time::Duration;

use clap::Args;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Failure>;

/// Addresses of the other systems. PGHOST, PGPORT and PGUSER name the PostgreSQL server, PGSOCKET its socket.
#[derive(Args, Clone, Default)]
pub struct Servers {
    /// HOST:PORT of etcd
    #[arg(long, default_value = "")]
    pub etcd: String,
    /// HOST:PORT of a Redis without persistence
    #[arg(long, default_value = "")]
    pub redis: String,
    /// HOST:PORT of a Redis that answers only once its file is synced: appendonly yes, appendfsync always
    #[arg(long, default_value = "")]
    pub redis_always: String,
}

/// A failed precondition of the measurement: an answer that is not the expected one.
pub fn ensure(holds: bool, otherwise: impl Into<Failure>) -> Result<()> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
