//! Clients of eskit_lease under faults, and checks of the answers that they get.
//!
//! `checker run` starts clients as processes of their own, which it can kill and stop. It lets faults loose on them and
//! on the server that libpq's variables name, and checks the history of the run. `checker check FILE` checks a history
//! again. The clients use only the public SQL of the extension; the checker looks into its tables when all clients have
//! departed.
//!
//! Files, low to high: history, workload, caller, crowd, nemesis, check, client, run, main.

mod caller;
mod check;
mod client;
mod crowd;
mod history;
mod nemesis;
mod run;
mod workload;

use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
enum Command {
    /// Makes a history and checks it; fails with the proof of a fault
    Run(run::Options),
    /// Checks a history
    Check { history: PathBuf },
    /// One of the clients of a run
    #[command(hide = true)]
    Client(client::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let sound = match Command::parse() {
        Command::Run(options) => run::run(options).await?,
        Command::Check { history } => run::judge(&history, None).await?,
        Command::Client(options) => client::run(options).await.map(|()| true)?,
    };
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
