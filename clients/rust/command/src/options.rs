//! What the command understands, and what its help says.

use clap::{ArgGroup, Args, Parser, Subcommand};
use std::{ffi::OsString, time::Duration};

/// Runs programs under leases of eskit_lease in PostgreSQL, and shows who holds what.
#[derive(Parser)]
#[command(name = "eskit-lease", version, after_help = PRIVILEGES)]
pub struct Options {
    /// The connection string; libpq's variables (PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE,
    /// PGSSLROOTCERT) stand for what it leaves out
    #[arg(
        long,
        global = true,
        env = "DATABASE_URL",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true
    )]
    pub dsn: String,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Runs a program while it leads, for each partition, or once
    Run(Run),
    /// Shows the leases that are held
    Status(Show),
    /// Shows the busiest leases, again and again
    Top(Top),
    /// Tells each change of a lease's holder that it sees: it looks once in an interval
    Watch(Top),
    /// Prints a completion script
    Completion { shell: clap_complete::Shell },
    /// Prints the manual page
    Man,
}

#[derive(Args)]
#[command(group = ArgGroup::new("verb").required(true), after_help = about_run())]
pub struct Run {
    /// Runs the program while this process leads NAME
    #[arg(long, value_name = "NAME", group = "verb")]
    pub lead: Option<String>,
    /// Runs the program once for each partition of GROUP that this process owns
    #[arg(long, value_name = "GROUP", group = "verb")]
    pub group: Option<String>,
    /// Runs the program once for KEY, in all processes; a program that fails frees the key
    #[arg(long, value_name = "KEY", group = "verb")]
    pub once: Option<String>,
    /// Leads again after a lost lease, instead of ending with 75
    #[arg(long, requires = "lead")]
    pub restart: bool,
    /// Ends with 75 at once if another process leads
    #[arg(long, requires = "lead")]
    pub no_wait: bool,
    /// The consumer's name, which views show [default: host, process id and a random part]
    #[arg(long)]
    pub name: Option<String>,
    /// Takes over from a session of the same --name, which no other process may have
    #[arg(long, requires = "name")]
    pub takeover: bool,
    /// How long the lease outlives a process that is gone or cut off
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub ttl: Duration,
    /// Time between SIGTERM and SIGKILL when the trust runs out [default: an eighth of the TTL]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub grace: Option<Duration>,
    /// Sends SIGKILL so long after a SIGTERM, SIGINT or SIGQUIT that was passed on [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stop_timeout: Option<Duration>,
    /// How long to try to reach the server, before it ends with 69
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub patience: Duration,
    /// Tells nothing on the standard error but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Args)]
pub struct Show {
    /// Only these leases and groups; status ends with 1 if none of them is held
    pub names: Vec<String>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    pub show: Show,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Ends after so many looks
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub count: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("not more than 0 seconds".into()),
    }
}

pub const PRIVILEGES: &str = "The views need the privileges of grant_monitor, and run those of grant_consumer.";

/// What the help of `run` and the manual page say beside the options: titles and texts.
pub const ABOUT_RUN: [(&str, &str); 4] = [
    (
        "Environment of the program",
        "\
ESKIT_LEASE_NAME       the lease, group or key
ESKIT_LEASE_FENCE      its fence: call eskit_lease.fence_check(name, fence)
                       in each transaction
ESKIT_LEASE_SESSION    the session's handle; keep it private
ESKIT_LEASE_PARTITION  the partition, with --group",
    ),
    (
        "Signals",
        "\
The program has a process group of its own. SIGTERM, SIGINT, SIGQUIT, SIGHUP,
SIGUSR1 and SIGUSR2 are passed on to the group. When the trust in the lease runs out,
it gets SIGTERM, and SIGKILL before the trust is over; SIGKILL at once if the
lease is lost. What is left of the group is killed when the program has ended.
If this command is killed, so is the program (on Linux). If the standard input
is a terminal, the program's is empty.",
    ),
    (
        "Exit status",
        "\
That of the program; 128 and the signal's number if a signal ended it, or this
command before the program began; or
64   usage
69   the server cannot be reached, or has refused a call
70   --once: the key has failed, or is in doubt, until
     eskit_lease.execution_resolve
75   the lease was lost; --no-wait: another process leads; --once: the key runs
     elsewhere
126  the program cannot be run
127  there is no such program
With --group it is 0 after SIGTERM, SIGINT or SIGQUIT. With --once it is 0 if the key
was done before, and its result is printed.",
    ),
    ("systemd", "NOTIFY_SOCKET is told READY=1 once the session is open, and STATUS=."),
];

fn about_run() -> String {
    let parts = ABOUT_RUN.map(|(title, text)| format!("{title}:\n  {}", text.replace('\n', "\n  ")));
    parts.join("\n\n")
}
