//! Bounds every wait: a server that does not answer is an error.

use std::time::Duration;

use tokio::time::timeout;

use crate::measure::Result;

/// More than any successful operation takes. The longest waits one second for an expiry.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn bounded<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    longer(Duration::ZERO, what, work).await
}

/// Allows the time `by` in addition, for work that takes that long by design.
pub async fn longer<T>(by: Duration, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let outcome = timeout(by + PATIENCE, work).await.map_err(|_| format!("{what}: no answer in time"))?;
    outcome.map_err(|error| format!("{what}: {}", detail(error.as_ref())).into())
}

/// Returns the message of an error with its causes, which contain PostgreSQL's message.
fn detail(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
