//! The baton that one connection passes to another, and the time that it takes.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::measure::Result;

/// One time is measured.
pub type Round<'a> = Pin<Box<dyn Future<Output = Result<Duration>> + Send + 'a>>;

pub trait Baton: Send {
    fn pass(&mut self) -> Round<'_>;
}

/// Waits until all is quiet: the next holder waits already, and the query that made sure of that is over.
pub async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

/// The time from the start of `act` to the moment that `arrival` tells, which waits already.
pub async fn between(
    arrival: impl Future<Output = Result<Instant>> + Send + 'static,
    waits: impl Future<Output = Result<()>>,
    act: impl Future<Output = Result<()>>,
) -> Result<Duration> {
    let arrival = tokio::spawn(arrival);
    // A task that fails before it waits is not waited for.
    waits.await?;
    settle().await;
    let start = Instant::now();
    act.await?;
    arrival.await?.map(|arrived| arrived.saturating_duration_since(start))
}
