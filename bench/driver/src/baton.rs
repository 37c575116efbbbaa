//! The baton that one connection passes to another, and the time that it takes.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::measure::Result;

/// Measures one time.
pub type Round<'a> = Pin<Box<dyn Future<Output = Result<Duration>> + Send + 'a>>;

pub trait Baton: Send {
    fn pass(&mut self) -> Round<'_>;
}

/// Waits until the next holder waits and the query that checked this is over.
pub async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

/// Measures the time from the start of `act` to the moment that `arrival` returns. `arrival` is already waiting then.
pub async fn between(
    arrival: impl Future<Output = Result<Instant>> + Send + 'static,
    waits: impl Future<Output = Result<()>>,
    act: impl Future<Output = Result<()>>,
) -> Result<Duration> {
    let arrival = tokio::spawn(arrival);
    // If this fails, the task has failed before it waited, and its result is not awaited.
    waits.await?;
    settle().await;
    let start = Instant::now();
    act.await?;
    arrival.await?.map(|arrived| arrived.saturating_duration_since(start))
}
