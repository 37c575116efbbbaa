//! Kills a client with an attached session, and measures the time until session_wait answers to the next in line. The
//! client is a process of its own, and the system closes its connection without a word to the server.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::baton::between;
use crate::bounded::bounded;
use crate::connection::Names;
use crate::lease::{Consumer, Watch};
use crate::measure::{Result, ensure, milliseconds};

const HOUR: Duration = Duration::from_secs(3_600);
const HELD: &str = "held";

/// Runs the client to kill. It ends by itself once the process that would kill it is gone.
pub async fn hold(name: &str) -> Result<()> {
    let consumer = Consumer::open("driver-killed", HOUR, true).await?;
    consumer.acquire(name).await?;
    println!("{HELD}");
    let mut rest = Vec::new();
    tokio::io::stdin().read_to_end(&mut rest).await?;
    Ok(())
}

async fn start(name: &str) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", name]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    ensure(line.as_deref() == Some(HELD), "the client to kill does not hold the lease")?;
    Ok(child)
}

async fn kill(next: &Arc<Consumer>, watch: &Watch, name: &str) -> Result<Duration> {
    let mut child = start(name).await?;
    let revision = next.queue(name).await?;
    let waiter = next.clone();
    let news = async move { waiter.news(revision).await };
    let act = async {
        child.start_kill()?;
        Ok(())
    };
    let time = between(news, watch.until_waiting(), act).await?;
    child.wait().await?;
    let fence = next.held(name).await?;
    next.release(name, fence).await?;
    Ok(time)
}

pub async fn run(rounds: usize) -> Result<serde_json::Value> {
    let next = Arc::new(Consumer::open("driver-next", HOUR, false).await?);
    let (watch, name) = (Watch::session_wait().await?, Names::of(0).next());
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(milliseconds(bounded("crash", kill(&next, &watch, &name)).await?));
    }
    Ok(json!({"crash": times}))
}
