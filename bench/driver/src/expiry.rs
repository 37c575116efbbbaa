//! Silences a holder, and measures the time from its deadline until session_wait answers to the next in line. A round
//! takes as long as the shortest TTL. So several pairs run at the same time, each with its own lease, with their rounds
//! spread over that TTL.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bounded::{bounded, longer};
use crate::connection::Names;
use crate::lease::Consumer;
use crate::measure::Result;

/// The shortest TTL that eskit_lease.min_ttl allows by default.
const TTL: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the seconds since 1970. The server is on this machine and has the same clock.
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

async fn expire(holder: &mut Consumer, next: &Consumer, name: &str) -> Result<f64> {
    holder.reopen("driver-silent", TTL).await?;
    holder.acquire(name).await?;
    let revision = next.queue(name).await?;
    let deadline = holder.heartbeat().await?.expires_at;
    let arrived = next.news(revision).await?;
    let late = now()? - arrived.elapsed().as_secs_f64() - deadline;
    let fence = next.held(name).await?;
    next.release(name, fence).await?;
    Ok((late * 1e6).round() / 1e3)
}

/// Runs the rounds, which the pairs share. Their deadlines are spread over a TTL.
pub async fn run(rounds: usize, pairs: usize) -> Result<serde_json::Value> {
    let mut running = JoinSet::new();
    for pair in 0..pairs {
        let share = rounds / pairs + usize::from(pair < rounds % pairs);
        running.spawn(async move {
            let name = Names::of(pair).next();
            let open = async {
                Result::Ok((
                    Consumer::open("driver-silent", TTL, false).await?,
                    Consumer::open("driver-next", HOUR, false).await?,
                ))
            };
            let (mut holder, next) = bounded("expiry", open).await?;
            sleep(TTL.mul_f64(pair as f64 / pairs as f64)).await;
            let mut late = Vec::new();
            for _ in 0..share {
                late.push(longer(TTL, "expiry", expire(&mut holder, &next, &name)).await?);
            }
            Result::Ok(late)
        });
    }
    let (start, mut late) = (Instant::now(), Vec::new());
    while let Some(done) = running.join_next().await {
        late.extend(done??);
    }
    Ok(json!({"late": late, "seconds": start.elapsed().as_secs_f64()}))
}
