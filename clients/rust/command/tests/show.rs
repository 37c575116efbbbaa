//! What `status`, `watch` and `top` tell, against the server of DATABASE_URL; without one, nothing is tested.

mod helpers;

use helpers::{Done, command, ended, name, said, send, started};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::env;
use std::time::Duration;

fn lines(out: &str) -> Result<Vec<Value>, serde_json::Error> {
    out.lines().map(serde_json::from_str).collect()
}

#[test]
fn status_and_top_show_who_leads() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let (lead, me) = (name("shown"), name("me"));
    let script = "echo runs; while :; do sleep 0.1; done";
    let child = started(&dsn, &["run", "--name", &me, "--ttl", "600", "--lead", &lead], script)?;

    let (code, out) = ended(command(&dsn, &["status", "--json", &lead]).spawn()?)?;
    let [held] = &lines(&out)?[..] else { return Err(out.into()) };
    assert_eq!(code, Some(0));
    assert_eq!((&held["resource"], &held["slot"], &held["consumer"]), (&json!(lead), &json!(0), &json!(me)));
    assert!(held["fence"].as_str().is_some_and(|fence| fence.parse::<i64>().is_ok_and(|fence| fence > 0)), "{held}");
    assert!(held["trust_ms"].is_i64() && held["waiters"] == 0, "{held}");
    let (_, all) = ended(command(&dsn, &["status", "--json"]).spawn()?)?;
    assert!(lines(&all)?.iter().any(|row| row["fence"] == held["fence"]));
    let (_, table) = ended(command(&dsn, &["status", &lead]).spawn()?)?;
    let table: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(table[0], ["RESOURCE", "SLOT", "CONSUMER", "FENCE", "HELD_FOR", "TRUST_MS", "WAITERS"]);
    assert_eq!(table[1][..4], [&lead, "0", &me, held["fence"].as_str().unwrap_or_default()]);

    let looks = ["top", "--json", "--count", "2", "--interval", "0.1", &lead];
    let (code, out) = ended(command(&dsn, &looks).spawn()?)?;
    let rows = lines(&out)?;
    assert_eq!((code, rows.len()), (Some(0), 2), "{out}");
    assert!(rows.iter().all(|row| row["resource"] == *lead && row["held"] == 1 && row["consumer"] == *me), "{out}");

    send(&child, Signal::TERM)?;
    ended(child)?;
    assert_eq!(ended(command(&dsn, &["status", &lead]).spawn()?)?, (Some(1), String::new()));
    Ok(())
}

#[test]
fn watch_tells_each_change() -> Done {
    let Ok(dsn) = env::var("DATABASE_URL") else { return Ok(()) };
    let lead = name("watched");
    let mut watch = command(&dsn, &["watch", "--json", "--interval", "0.05", &lead]).spawn()?;
    let mut fences = Vec::new();
    for _ in 0..2 {
        let me = name("me");
        let child = started(&dsn, &["run", "--name", &me, "--lead", &lead], "echo runs; exec sleep 1000")?;
        for event in ["granted", "free"] {
            let told: Value = serde_json::from_str(&said(&mut watch)?)?;
            assert_eq!(
                (&told["event"], &told["resource"], &told["consumer"]),
                (&json!(event), &json!(lead), &json!(me))
            );
            fences.push(told["fence"].as_str().ok_or("no fence")?.parse::<i64>()?);
            if event == "granted" {
                send(&child, Signal::TERM)?;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        ended(child)?;
    }
    watch.kill()?;
    watch.wait()?;
    assert!(fences[0] == fences[1] && fences[1] < fences[2] && fences[2] == fences[3], "{fences:?}");
    Ok(())
}
