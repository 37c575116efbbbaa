//! `eskit-lease`: runs programs under leases, and shows who holds what.

mod manual;
mod notify;
mod options;
mod program;
mod run;
mod show;

use clap::{CommandFactory, Parser, error::ErrorKind};
use options::{Command, Options};
use std::io::stdout;
use std::process::ExitCode;

const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const IN_DOUBT: u8 = 70;
const TEMPORARY: u8 = 75;

/// Why the command ends before its program has, or without one.
struct Failure {
    code: u8,
    why: String,
}

impl Failure {
    fn new(code: u8, why: impl ToString) -> Self {
        Failure { code, why: why.to_string() }
    }
}

impl From<eskit_lease::Error> for Failure {
    /// Tells of an error with its cause, which the driver's display leaves out.
    fn from(error: eskit_lease::Error) -> Self {
        let code = match error {
            eskit_lease::Error::Misuse(_) => USAGE,
            eskit_lease::Error::Lost(_) => TEMPORARY,
            _ => UNAVAILABLE,
        };
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            if !why.contains(&error.to_string()) {
                why += &format!(": {error}");
            }
            cause = error.source();
        }
        Failure { code, why }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        eskit_lease::Error::from(error).into()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked { 0 } else { USAGE });
        }
    };
    let done = match options.command {
        Command::Run(run) => run::run(&options.dsn, run).await,
        Command::Status(status) => show::status(&options.dsn, &status).await,
        Command::Top(top) => show::top(&options.dsn, &top).await,
        Command::Watch(watch) => show::watch(&options.dsn, &watch).await,
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Options::command(), "eskit-lease", &mut stdout());
            Ok(0)
        }
        Command::Man => manual::write(&mut stdout()).map(|()| 0).map_err(|error| Failure::new(IN_DOUBT, error)),
    };
    ExitCode::from(done.unwrap_or_else(|failure| {
        run::say(&failure.why);
        failure.code
    }))
}
