//! What the tests of the command have in common.
#![allow(dead_code)] // each of them needs some of it

use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{self, Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

pub type Done = Result<(), Box<dyn Error>>;

/// A name of this test run.
pub fn name(of: &str) -> String {
    format!("command-test-{of}-{}", process::id())
}

pub fn command(dsn: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eskit-lease"));
    command.args(["--dsn", dsn]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts the command, and waits until its program, a script, has said that it runs.
pub fn started(dsn: &str, args: &[&str], script: &str) -> Result<Child, Box<dyn Error>> {
    let args = [args, &["--", "sh", "-c", script]].concat();
    let mut child = command(dsn, &args).spawn()?;
    assert_eq!(said(&mut child)?, "runs");
    Ok(child)
}

/// Reads a line of the output.
pub fn said(child: &mut Child) -> Result<String, Box<dyn Error>> {
    let (mut line, mut byte) = (String::new(), [0]);
    let out = child.stdout.as_mut().ok_or("no output")?;
    while !line.ends_with('\n') {
        out.read_exact(&mut byte)?;
        line.push(byte[0].into());
    }
    Ok(line.trim_end().into())
}

pub fn send(child: &Child, signal: Signal) -> Done {
    Ok(kill_process(Pid::from_raw(child.id().try_into()?).ok_or("no process")?, signal)?)
}

pub fn ended(child: Child) -> Result<(Option<i32>, String), Box<dyn Error>> {
    let Output { status, stdout, .. } = child.wait_with_output()?;
    Ok((status.code(), String::from_utf8(stdout)?))
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Done {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > Duration::from_secs(20) {
            return Err(format!("never: {what}").into());
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub fn psql(dsn: &str, sql: &str) -> Done {
    assert!(Command::new("psql").args([dsn, "-qXAt", "-c", sql]).stdout(Stdio::null()).status()?.success());
    Ok(())
}

/// A network in front of the server, which can go silent.
pub struct Link {
    pub dsn: String,
    silent: Arc<AtomicBool>,
}

impl Link {
    pub fn to(dsn: &str) -> Result<Link, Box<dyn Error>> {
        let (before, host) = dsn.rsplit_once('@').ok_or("no user in DATABASE_URL")?;
        let (host, database) = host.split_once('/').ok_or("no database in DATABASE_URL")?;
        let (listener, silent) = (TcpListener::bind("127.0.0.1:0")?, Arc::new(AtomicBool::new(false)));
        let dsn = format!("{before}@{}/{database}", listener.local_addr()?);
        let (host, quiet) = (host.to_owned(), silent.clone());
        thread::spawn(move || -> io::Result<()> {
            for client in listener.incoming() {
                let (client, server) = (client?, TcpStream::connect(&host)?);
                for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
                    let quiet = quiet.clone();
                    thread::spawn(move || {
                        let mut data = [0; 8192];
                        while let Ok(length @ 1..) = from.read(&mut data) {
                            if !quiet.load(Relaxed) && to.write_all(&data[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
            Ok(())
        });
        Ok(Link { dsn, silent })
    }

    /// Loses all that comes from now on, without a word.
    pub fn cut(&self) {
        self.silent.store(true, Relaxed);
    }
}
