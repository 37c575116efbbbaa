//! The clients as processes: starts, stops, continues and kills them, sends them the phase of the run, and waits for
//! them.

use crate::caller::Caller;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout_at};

pub struct Process {
    /// The consumer and the number of the incarnation.
    pub name: String,
    child: Child,
    /// Open until the process must leave.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// When the process goes on, if it is stopped.
    pub asleep_until: Option<Instant>,
}

/// All processes, and where they write.
pub struct Crowd {
    pub processes: Vec<Process>,
    seed: u64,
    database: String,
    history: PathBuf,
    born: u64,
}

impl Crowd {
    pub fn new(seed: u64, database: &str, history: &Path) -> Crowd {
        Crowd { processes: Vec::new(), seed, database: database.to_owned(), history: history.to_owned(), born: 0 }
    }

    /// Returns the file to which a client writes.
    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("{}.{name}", self.history.display()))
    }

    /// Returns all files that clients have written to.
    pub fn files(&self) -> Vec<PathBuf> {
        let directory = self.history.parent().unwrap_or(Path::new("."));
        let prefix = format!("{}.", self.history.file_name().unwrap_or_default().to_string_lossy());
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
            .collect()
    }

    pub fn start(&mut self, consumer: &str, takeover: bool) -> Result<&str> {
        self.born += 1;
        let name = format!("{consumer}.{}", self.born);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("client").arg("--seed").arg(self.seed.to_string()).arg("--name").arg(&name);
        command.arg("--database").arg(&self.database).arg("--history").arg(self.file(&name));
        if takeover {
            command.arg("--takeover");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a client")?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("no stdout")?);
        let output = BufReader::new(output).lines();
        self.processes.push(Process { name, child, input, output, asleep_until: None });
        Ok(self.processes.last().map_or("", |process| &process.name))
    }

    /// Returns the processes that are not stopped.
    pub fn awake(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|index| self.processes[*index].asleep_until.is_none()).collect()
    }

    pub async fn kill(&mut self, index: usize, caller: &Caller) -> String {
        let mut process = self.processes.remove(index);
        // Written before the kill, which takes effect at once.
        caller.fault("kill".into(), Some(&process.name), true);
        drop(process.child.kill().await);
        process.name
    }

    /// Continues the stopped processes whose time has come. `all`: continues all of them.
    pub fn wake(&mut self, caller: &Caller, all: bool) {
        for process in &mut self.processes {
            if process.asleep_until.is_some_and(|until| all || until <= Instant::now()) {
                process.asleep_until = None;
                process.signal(Signal::SIGCONT);
                caller.fault("continue".into(), Some(&process.name), false);
            }
        }
    }

    pub fn stop(&mut self, index: usize, time: Duration, caller: &Caller) {
        let process = &mut self.processes[index];
        process.asleep_until = Some(Instant::now() + time);
        process.signal(Signal::SIGSTOP);
        caller.fault(format!("stop for {} ms", time.as_millis()), Some(&process.name), false);
    }

    /// Tells a process that another one is about to take over. The process then keeps a lease in grace and works
    /// slowly.
    pub async fn part(&mut self, index: usize) {
        if let Some(input) = &mut self.processes[index].input {
            drop(input.write_all(b"part\n").await);
            drop(input.flush().await);
        }
    }

    /// Tells all processes that there are no more faults.
    pub async fn calm(&mut self) {
        for input in self.processes.iter_mut().filter_map(|process| process.input.as_mut()) {
            drop(input.write_all(b"calm\n").await);
            drop(input.flush().await);
        }
    }

    /// Waits until all processes have said that they were served, at most for `limit`.
    pub async fn all_served(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        for process in &mut self.processes {
            drop(timeout_at(until, process.output.next_line()).await);
        }
    }

    /// Asks all processes to leave and waits for them, at most for `limit`. Then kills the rest.
    pub async fn all_gone(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        self.processes.iter_mut().for_each(|process| process.input = None);
        for process in &mut self.processes {
            if timeout_at(until, process.child.wait()).await.is_err() {
                drop(process.child.kill().await);
            }
        }
        self.processes.clear();
    }
}

impl Process {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id() {
            // A process that has just ended needs no signal.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}
