//! Programs under leases, against the server of DATABASE_URL; without one, nothing is tested.

mod helpers;

use helpers::{Done, Link, command, ended, name, psql, said, send, started, until};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs, process};

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
    assert_eq!(said(&mut child)?, "hup");
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

/// Behind a silent network: SIGTERM, SIGKILL after the grace, and only then does another process lead.
#[test]
fn a_program_ends_before_the_trust_is_over() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let (link, lead) = (Link::to(&dsn)?, name("silent"));
    let args = ["run", "--ttl", "4", "--grace", "1", "--lead", &lead];
    let ignores =
        "trap 'echo term $(date +%s%N)' TERM; echo runs; while :; do sleep 0.02; echo tick $(date +%s%N); done";
    let one = started(&link.dsn, &args, ignores)?;
    let next = command(&dsn, &["run", "--lead", &lead, "--", "date", "+%s%N"]).spawn()?;
    sleep(Duration::from_secs(1));
    link.cut();
    let (code, out) = ended(one)?;
    assert_eq!(code, Some(75));
    let at = |what: &str| -> Option<f64> {
        let line = out.lines().rev().find_map(|line| line.strip_prefix(what))?;
        Some(line.trim().parse::<f64>().ok()? / 1e9)
    };
    let (term, last) = (at("term ").ok_or("no SIGTERM")?, at("tick ").ok_or("no output")?);
    let (code, granted) = ended(next)?;
    let granted = granted.trim().parse::<f64>()? / 1e9;
    assert_eq!(code, Some(0));
    assert!((0.5..1.2).contains(&(last - term)), "it went on for {} s after SIGTERM", last - term);
    assert!(last < granted, "it went on for {} s while another led", last - granted);

    // One that obeys ends by itself.
    let (link, lead) = (Link::to(&dsn)?, name("obeys"));
    let obeys = "trap 'echo term; exit 0' TERM; echo runs; while :; do sleep 0.1; done";
    let one = started(&link.dsn, &["run", "--ttl", "2", "--lead", &lead], obeys)?;
    link.cut();
    assert_eq!(ended(one)?, (Some(75), "term\n".into()));
    Ok(())
}

/// As the first process of a container: it reaps what the program leaves behind, and passes signals on.
#[test]
fn it_is_a_first_process() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let space = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    if !Command::new("unshare").args(space).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("not tested: there are no name spaces here");
        return Ok(());
    }
    let script = "echo $PPID; (sleep 0.1 &); sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status
                  trap 'echo term; exit 3' TERM; kill -TERM $PPID; while :; do sleep 0.1; done";
    let lead = name("first");
    let own = command(&dsn, &["run", "--lead", &lead, "--", "sh", "-c", script]);
    let mut first = Command::new("unshare");
    first.args(space).arg(own.get_program()).args(own.get_args()).stdout(Stdio::piped());
    assert_eq!(ended(first.spawn()?)?, (Some(3), "1\nterm\n".into()));
    Ok(())
}

#[test]
fn the_environment_says_where_the_server_is() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let run = |variables: &[(&str, &str)]| {
        let lead = name("environment");
        let mut command = Command::new(env!("CARGO_BIN_EXE_eskit-lease"));
        command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default()).envs(variables.iter().copied());
        command.args(["run", "--quiet", "--lead", &lead, "--", "sh", "-c", "echo $PGUSER ${DATABASE_URL:+by URL}"]);
        ended(command.stdout(Stdio::piped()).spawn()?)
    };
    assert_eq!(run(&[("DATABASE_URL", &dsn)])?, (Some(0), "by URL\n".into()));
    let (user, rest) = dsn.split_once("://").and_then(|(_, rest)| rest.split_once(':')).ok_or("no user")?;
    let (password, rest) = rest.split_once('@').ok_or("no password")?;
    let (host, database) = rest.split_once('/').ok_or("no database")?;
    let (host, port) = host.split_once(':').ok_or("no port")?;
    let variables =
        [("PGHOST", host), ("PGPORT", port), ("PGUSER", user), ("PGPASSWORD", password), ("PGDATABASE", database)];
    assert_eq!(run(&variables)?, (Some(0), format!("{user}\n")));
    // An option wins over a variable, and what it leaves out comes from the others.
    let by_option = command("host=127.0.0.1 port=1", &["run", "--patience", "0.5", "--lead", "x", "--", "true"])
        .envs(variables)
        .spawn()?;
    assert_eq!(ended(by_option)?.0, Some(69));
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
    assert_eq!(said(&mut child)?, "runs");
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
    assert_eq!(ended(command(&dsn, &["run", "--once", &key, "--", "/no/such/program"]).spawn()?)?.0, Some(0));

    // It ends as its program does.
    let stopped = name("stopped");
    let child =
        started(&dsn, &["run", "--once", &stopped], "trap 'exit 5' TERM; echo runs; while :; do sleep 0.1; done")?;
    send(&child, Signal::TERM)?;
    assert_eq!(ended(child)?.0, Some(5));

    // Of one that was killed nobody knows how far it came.
    let doubt = name("doubt");
    let mut child = started(&dsn, &["run", "--ttl", "1", "--once", &doubt], "echo runs; exec sleep 1000")?;
    child.kill()?;
    child.wait()?;
    let again = || Ok(command(&dsn, &["run", "--once", &doubt, "--", "true"]).spawn()?);
    until("it is in doubt", || again().and_then(ended).is_ok_and(|(code, _)| code == Some(70)))?;
    assert_eq!(ended(again()?)?, (Some(70), format!("{doubt}: in_doubt\n")));
    let none = name("none");
    assert_eq!(ended(command(&dsn, &["run", "--once", &none, "--", "/no/such/program"]).spawn()?)?.0, Some(127));
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

/// An operator's SIGTERM holds, also if the lease is lost before the program has obeyed.
#[test]
fn a_stop_is_not_undone_by_a_lost_lease() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("stopped");
    let script = "trap 'echo term' TERM; echo runs; while :; do sleep 0.1; done";
    let mut child = started(&dsn, &["run", "--restart", "--lead", &lead], script)?;
    send(&child, Signal::TERM)?;
    assert_eq!(said(&mut child)?, "term");
    let force = "SELECT eskit_lease.lease_force_release(resource, fence, 't') FROM eskit_lease.leases";
    psql(&dsn, &format!("{force} WHERE resource = '{lead}'"))?;
    until("it has ended", || child.try_wait().is_ok_and(|status| status.is_some()))?;
    assert_eq!(ended(child)?, (Some(75), String::new()));
    Ok(())
}

#[test]
fn sigquit_ends_as_sigterm_does() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("quit");
    let child = started(&dsn, &["run", "--lead", &lead], "trap 'exit 9' QUIT; echo runs; while :; do sleep 0.1; done")?;
    let waiting = command(&dsn, &["run", "--lead", &lead, "--", "true"]).spawn()?;
    sleep(Duration::from_millis(700));
    send(&waiting, Signal::QUIT)?;
    assert_eq!(ended(waiting)?.0, Some(131));
    send(&child, Signal::QUIT)?;
    assert_eq!(ended(child)?.0, Some(9));
    Ok(())
}

#[test]
fn a_success_that_is_not_stored_is_none() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let key = name("taken");
    let close = "SELECT eskit_lease.session_close('$ESKIT_LEASE_SESSION')";
    let script = format!("trap '' TERM; psql '{dsn}' -qXAt -c \"{close}\" >&2; echo ran");
    let (code, _) = ended(command(&dsn, &["run", "--once", &key, "--", "sh", "-c", &script]).spawn()?)?;
    assert_eq!(code, Some(75));
    let key = name("resolved");
    let fail = "SELECT eskit_lease.execution_fail('$ESKIT_LEASE_NAME', $ESKIT_LEASE_FENCE, 'x')";
    let script = format!("psql '{dsn}' -qXAt -c \"{fail}\" >&2");
    let (code, _) = ended(command(&dsn, &["run", "--once", &key, "--", "sh", "-c", &script]).spawn()?)?;
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    Ok(())
}

#[test]
fn a_member_whose_program_cannot_be_started_ends() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let group = name("none");
    psql(&dsn, &format!("SELECT eskit_lease.group_create('{group}', 2)"))?;
    for (program, code) in [("/no/such/program", 127), ("/", 126)] {
        let mut child = command(&dsn, &["run", "--group", &group, "--", program]).spawn()?;
        until("it has ended", || child.try_wait().is_ok_and(|status| status.is_some()))?;
        assert_eq!(ended(child)?.0, Some(code), "{program}");
    }
    psql(&dsn, &format!("SELECT eskit_lease.group_drop('{group}')"))
}

/// A reader of the log that has gone ends no program.
#[test]
fn a_log_that_nobody_reads_is_no_trouble() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let mut child = command(&dsn, &["run", "--lead", &name("unread"), "--", "sh", "-c", "exit 5"]).spawn()?;
    drop(child.stderr.take());
    assert_eq!(ended(child)?.0, Some(5));
    Ok(())
}
