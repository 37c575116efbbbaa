//! Programs under leases, against the server of DATABASE_URL; without one, nothing is tested.

use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{env, fs, process};

type Done = Result<(), Box<dyn Error>>;

/// A name of this test run.
fn name(of: &str) -> String {
    format!("command-test-{of}-{}", process::id())
}

fn command(dsn: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eskit-lease"));
    command.args(["--dsn", dsn]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts the command, and waits until its program, a script, has said that it runs.
fn started(dsn: &str, args: &[&str], script: &str) -> Result<Child, Box<dyn Error>> {
    let args = [args, &["--", "sh", "-c", script]].concat();
    let mut child = command(dsn, &args).spawn()?;
    said(&mut child, "runs")?;
    Ok(child)
}

/// Reads a line of the program's output.
fn said(child: &mut Child, what: &str) -> Done {
    let (mut line, mut byte) = (String::new(), [0]);
    let out = child.stdout.as_mut().ok_or("no output")?;
    while !line.ends_with('\n') {
        out.read_exact(&mut byte)?;
        line.push(byte[0].into());
    }
    assert_eq!(line.trim_end(), what);
    Ok(())
}

fn send(child: &Child, signal: Signal) -> Done {
    Ok(kill_process(Pid::from_raw(child.id().try_into()?).ok_or("no process")?, signal)?)
}

fn ended(child: Child) -> Result<(Option<i32>, String), Box<dyn Error>> {
    let Output { status, stdout, .. } = child.wait_with_output()?;
    Ok((status.code(), String::from_utf8(stdout)?))
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Done {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > Duration::from_secs(20) {
            return Err(format!("never: {what}").into());
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn psql(dsn: &str, sql: &str) -> Done {
    assert!(Command::new("psql").args([dsn, "-qXAt", "-c", sql]).stdout(Stdio::null()).status()?.success());
    Ok(())
}

/// A network in front of the server, which can go silent.
struct Link {
    dsn: String,
    silent: Arc<AtomicBool>,
}

impl Link {
    fn to(dsn: &str) -> Result<Link, Box<dyn Error>> {
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
}

#[test]
fn the_program_knows_its_lease_and_its_exit_status_is_passed_on() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("env");
    let script =
        r#"echo "$ESKIT_LEASE_NAME ${ESKIT_LEASE_FENCE:+fence} ${#ESKIT_LEASE_SESSION} ${NOTIFY_SOCKET-none}"; exit 7"#;
    let (code, out) = ended(command(&dsn, &["run", "--lead", &lead, "--", "sh", "-c", script]).spawn()?)?;
    assert_eq!((code, out.trim_end()), (Some(7), &*format!("{lead} fence 36 none")));
    for (args, code) in [
        (vec!["run", "--lead", &lead, "--", "/no/such/program"], 127),
        (vec!["run", "--lead", &lead, "--", "/"], 126),
        (vec!["run", "--lead", &lead, "--", "sh", "-c", "kill -KILL $$"], 137),
        (vec!["run", "--lead", &lead], 64),
        (vec!["run", "--lead", &lead, "--grace", "15", "--", "true"], 64),
        (vec!["status", &lead], 1),
        (vec!["man"], 0),
    ] {
        assert_eq!(ended(command(&dsn, &args).spawn()?)?.0, Some(code), "{args:?}");
    }
    let nowhere = ["run", "--patience", "0.5", "--lead", &lead, "--", "true"];
    assert_eq!(ended(command("host=127.0.0.1 port=1 user=nobody", &nowhere).spawn()?)?.0, Some(69));
    Ok(())
}

#[test]
fn signals_are_passed_on() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("signals");
    let traps = "trap 'echo hup' HUP; trap 'echo term; exit 9' TERM; echo runs; while :; do sleep 0.1; done";
    let mut child = started(&dsn, &["run", "--lead", &lead], traps)?;
    assert_eq!(ended(command(&dsn, &["run", "--no-wait", "--lead", &lead, "--", "true"]).spawn()?)?.0, Some(75));
    assert_eq!(ended(command(&dsn, &["status", "--json", &lead]).spawn()?)?.0, Some(0));
    send(&child, Signal::HUP)?;
    said(&mut child, "hup")?;
    let waiting = command(&dsn, &["run", "--lead", &lead, "--", "true"]).spawn()?;
    sleep(Duration::from_millis(700));
    send(&waiting, Signal::TERM)?;
    assert_eq!(ended(waiting)?.0, Some(143));
    send(&child, Signal::TERM)?;
    assert_eq!(ended(child)?, (Some(9), "term\n".into()));

    // One that ignores SIGTERM is killed after its time, with what it has started.
    let ignores = "trap '' TERM; sleep 1000 & echo runs; wait; while :; do sleep 1; done";
    let child = started(&dsn, &["run", "--lead", &lead, "--stop-timeout", "0.5"], ignores)?;
    send(&child, Signal::TERM)?;
    assert_eq!(ended(child)?.0, Some(137));
    Ok(())
}

#[test]
fn a_program_ends_before_the_trust_is_over() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let link = Link::to(&dsn)?;
    let args = |lead| ["run", "--ttl", "3", "--lead", lead];
    let (obeys, ignores) = (name("obeys"), name("ignores"));
    let one =
        started(&link.dsn, &args(&obeys), "trap 'echo term; exit 0' TERM; echo runs; while :; do sleep 0.1; done")?;
    let two = started(&link.dsn, &args(&ignores), "trap 'echo term' TERM; echo runs; while :; do sleep 0.1; done")?;
    let began = Instant::now();
    link.silent.store(true, Relaxed);
    assert_eq!(ended(one)?, (Some(75), "term\n".into()));
    assert_eq!(ended(two)?, (Some(75), "term\n".into()));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    Ok(())
}

#[test]
fn a_lost_lease_kills_and_restart_leads_again() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("lost");
    let force = format!(
        "SELECT eskit_lease.lease_force_release(resource, fence, 't') FROM eskit_lease.leases WHERE resource = '{lead}'"
    );
    let child = started(&dsn, &["run", "--lead", &lead], "trap '' TERM; echo runs; while :; do sleep 0.1; done")?;
    psql(&dsn, &force)?;
    assert_eq!(ended(child)?.0, Some(75));
    let mut child = started(&dsn, &["run", "--restart", "--lead", &lead], "echo runs; exec sleep 1000")?;
    psql(&dsn, &force)?;
    said(&mut child, "runs")?;
    send(&child, Signal::TERM)?;
    assert_eq!(ended(child)?.0, Some(143));
    Ok(())
}

#[test]
fn a_program_dies_with_the_command_and_leaves_nothing() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name("pids"));
    let script = format!("sleep 1000 & echo $$ $! >{}; echo runs; wait", file.display());
    let mut child = started(&dsn, &["run", "--ttl", "2", "--lead", &name("killed")], &script)?;
    let alive = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let pids = fs::read_to_string(&file)?;
    let (program, _) = pids.trim().split_once(' ').ok_or("no pids")?;
    child.kill()?;
    child.wait()?;
    until("the program is dead", || !alive(program))?;

    let script = format!("sleep 1000 & echo $$ $! >{}; echo runs", file.display());
    assert_eq!(ended(started(&dsn, &["run", "--lead", &name("leaves")], &script)?)?.0, Some(0));
    let pids = fs::read_to_string(&file)?;
    let (_, left) = pids.trim().split_once(' ').ok_or("no pids")?;
    until("what it left is dead", || !alive(left))?;
    Ok(fs::remove_file(file)?)
}

#[test]
fn each_partition_has_a_program() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let group = name("group");
    psql(&dsn, &format!("SELECT eskit_lease.group_create('{group}', 2)"))?;
    let script =
        "p=$ESKIT_LEASE_PARTITION; trap 'echo ends $p; exit 0' TERM; echo runs $p; while :; do sleep 0.1; done";
    let child = command(&dsn, &["run", "--group", &group, "--", "sh", "-c", script]).spawn()?;
    let owned =
        format!("SELECT 1 / (count(owner) = 2)::int FROM eskit_lease.group_partitions WHERE group_name = '{group}'");
    until("both partitions are owned", || {
        Command::new("psql").args([&*dsn, "-qXAt", "-c", &owned]).output().is_ok_and(|done| done.status.success())
    })?;
    sleep(Duration::from_millis(500));
    send(&child, Signal::TERM)?;
    let (code, out) = ended(child)?;
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["ends 0", "ends 1", "runs 0", "runs 1"]));
    psql(&dsn, &format!("SELECT eskit_lease.group_drop('{group}')"))?;
    let missing = command(&dsn, &["run", "--group", "command-test-none", "--", "true"]).spawn()?;
    assert_eq!(ended(missing)?.0, Some(69));
    Ok(())
}

#[test]
fn a_key_runs_once() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let key = name("key");
    let run = |script: &str| ended(command(&dsn, &["run", "--once", &key, "--", "sh", "-c", script]).spawn()?);
    assert_eq!(run("exit 3")?.0, Some(3));
    let child = started(&dsn, &["run", "--once", &key], "echo runs; sleep 5")?;
    assert_eq!(run("true")?, (Some(75), format!("{key}: running\n")));
    assert_eq!(ended(child)?.0, Some(0));
    assert_eq!(run("exit 4")?, (Some(0), format!("{key}: done {{\"exit\": 0}}\n")));
    Ok(())
}

#[test]
fn systemd_is_told() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("n{}", process::id()));
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let lead = name("notify");
    let child = command(&dsn, &["run", "--lead", &lead, "--", "true"]).env("NOTIFY_SOCKET", &path).spawn()?;
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "STOPPING=1") {
        let mut data = [0; 512];
        let length = socket.recv(&mut data)?;
        told.push(String::from_utf8_lossy(&data[..length]).into_owned());
    }
    assert_eq!(ended(child)?.0, Some(0));
    assert_eq!(told[0..2], ["READY=1".to_owned(), format!("STATUS=waits for {lead}")]);
    assert!(told[2].starts_with(&format!("STATUS=leads {lead} under fence ")), "{told:?}");
    Ok(fs::remove_file(path)?)
}
