//! The programs that this command starts: each in a process group of its own.

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Reaps what ends: the programs, and, as it is their subreaper or the first process of a container, what they leave.
#[derive(Clone)]
pub struct Reaper {
    known: Arc<Mutex<HashMap<i32, Option<i32>>>>, // the programs, with the exit status of those that have ended
    reaped: Arc<watch::Sender<()>>,
}

impl Reaper {
    pub fn start() -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let mut children = signal(SignalKind::child())?;
        let reaper = Reaper { known: Arc::default(), reaped: Arc::new(watch::Sender::new(())) };
        let this = reaper.clone();
        tokio::spawn(async move {
            while children.recv().await.is_some() {
                this.reap();
            }
        });
        Ok(reaper)
    }

    fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(ended) = known.get_mut(&pid.as_raw_nonzero().get()) {
                *ended = code;
            }
        }
        self.reaped.send_replace(());
    }

    /// Starts a program, whose environment also has these variables.
    pub fn spawn(&self, program: &[OsString], variables: &[(&str, String)]) -> io::Result<Program> {
        let (name, arguments) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).envs(variables.iter().cloned()).env_remove("NOTIFY_SOCKET").process_group(0);
        if io::stdin().is_terminal() {
            command.stdin(Stdio::null()); // a program in the background may not read from a terminal
        }
        #[cfg(target_os = "linux")]
        end_with_parent(&mut command);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let id = child.id().try_into().map_err(io::Error::other)?;
        known.insert(id, None);
        let pid = Pid::from_raw(id).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Program { reaper: self.clone(), id, pid })
    }
}

/// Lets the program die when this process does: it must not work without a lease.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let die = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()), // it has died before
        }
    };
    // SAFETY: between fork and exec only two system calls are made, and no memory is allocated.
    unsafe { command.pre_exec(die) };
}

/// A program that runs. It is killed, with its process group, when this is dropped.
pub struct Program {
    reaper: Reaper,
    id: i32,
    pid: Pid,
}

impl Program {
    /// Waits for its end, and returns its exit status as a shell tells it.
    pub async fn ended(&self) -> u8 {
        let mut reaped = self.reaper.reaped.subscribe();
        loop {
            let known = self.reaper.known.lock().unwrap_or_else(PoisonError::into_inner).get(&self.id).copied();
            match known {
                Some(Some(code)) => return code.try_into().unwrap_or(u8::MAX),
                _ => drop(reaped.changed().await),
            }
        }
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal); // which may have ended
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal(Signal::KILL); // also what the program has left behind
        self.reaper.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
