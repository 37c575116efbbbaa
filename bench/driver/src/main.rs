//! Measures what pgbench cannot: latencies between connections, and other systems with as many connections as
//! PostgreSQL. One program drives all of them, so that a client costs much the same for each. It prints the results as
//! JSON, for bench/*.py.
//!
//! Files, low to high: measure, bounded, connection, worker, baton, lease, wakeup, etcd, redis, outbox, postgres,
//! turns, handover, expiry, crash, main.

mod baton;
mod bounded;
mod connection;
mod crash;
#[cfg(feature = "etcd")]
mod etcd;
mod expiry;
mod handover;
mod lease;
mod measure;
mod outbox;
mod postgres;
mod redis;
mod turns;
mod wakeup;
mod worker;

use clap::{Parser, Subcommand};

use crate::measure::{Result, Servers};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    servers: Servers,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The systems that this driver was built with
    Systems,
    /// Operations per second of each system, turn by turn
    Turns(turns::Options),
    /// Milliseconds from a release until the next holder knows
    Handover {
        #[arg(long)]
        rounds: usize,
        systems: Vec<String>,
    },
    /// Milliseconds from the deadline of a silent holder until the next holder knows
    Expiry {
        #[arg(long)]
        rounds: usize,
        /// Pairs of a holder and a waiter; the holders expire independently
        #[arg(long)]
        pairs: usize,
    },
    /// Milliseconds from the kill of a client with an attached session until the next holder knows
    Crash {
        #[arg(long)]
        rounds: usize,
    },
    /// The process that `crash` kills; it holds a lease by an attached session
    Hold { name: String },
}

fn systems() -> serde_json::Value {
    let mut all = vec!["postgres", "redis"];
    if cfg!(feature = "etcd") {
        all.push("etcd");
    }
    all.into()
}

async fn run(command: Command) -> Result<()> {
    let servers = command.servers;
    let answer = match command.what {
        What::Systems => systems(),
        What::Turns(options) => turns::run(options, &servers).await?,
        What::Handover { rounds, systems } => handover::run(rounds, &systems, &servers).await?,
        What::Expiry { rounds, pairs } => expiry::run(rounds, pairs).await?,
        What::Crash { rounds } => crash::run(rounds).await?,
        What::Hold { name } => return crash::hold(&name).await,
    };
    println!("{answer}");
    Ok(())
}

fn main() -> Result<()> {
    let command = Command::parse();
    // One thread, so no thread wakes another. Turns have more threads of this kind.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(command))
}
