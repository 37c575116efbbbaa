//! Nothing here waits for ever: a server that does not answer is an error.

use std::time::Duration;

use tokio::time::timeout;

use crate::measure::Result;

/// More than anything takes that works: the longest is to wait for an expiry, of a second.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn bounded<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    longer(Duration::ZERO, what, work).await
}

/// For what takes so long by intention.
pub async fn longer<T>(by: Duration, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let outcome = timeout(by + PATIENCE, work).await.map_err(|_| format!("{what}: no answer in time"))?;
    outcome.map_err(|error| format!("{what}: {}", detail(error.as_ref())).into())
}

/// With the causes, where PostgreSQL's message is.
fn detail(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
