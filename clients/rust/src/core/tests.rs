//! The vectors, which every library's core runs.

use super::{Action, Answer, Core};
use serde_json::Value;
use std::time::Duration;

fn ms(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or_else(|| unreachable!("{value}")) / 1e3)
}

fn answer(of: &Value) -> Answer {
    Answer {
        alive: of["alive"].as_bool().unwrap_or(true),
        trust: Duration::from_millis(of["trust_ms"].as_u64().unwrap_or(0)),
        revision: of["revision"].as_i64().unwrap_or(0),
        reason: of["reason"].as_str().unwrap_or_default().into(),
        session: of["session"].as_str().map(str::to_owned),
    }
}

/// Returns an action as the vectors write it.
fn written(action: Action) -> Value {
    match action {
        Action::Connect => "connect".into(),
        Action::Disconnect => "disconnect".into(),
        Action::Open { takeover } => serde_json::json!({"open": {"takeover": takeover}}),
        Action::Wait { timeout, revision } => {
            serde_json::json!({"wait": {"timeout_ms": timeout.as_millis() as u64, "revision": revision}})
        }
        Action::Beat => "beat".into(),
        Action::Cancel => "cancel".into(),
        Action::Ask => "ask".into(),
        Action::Warn(why) => serde_json::json!({"warn": {"why": why}}),
    }
}

fn happen(core: &mut Core, now: Duration, event: &Value) {
    match event.as_str() {
        Some("start") => (), // a core starts when it is made
        Some("connected") => core.connected(now),
        Some("disconnected") => core.disconnected(now),
        Some("tick") => core.tick(now),
        Some("drain") => core.drain(),
        Some("close") => core.close(),
        _ if event["answered"].is_object() => core.answered(now, &answer(&event["answered"]["answer"])),
        _ if event["failed"].is_object() => core.failed(now, event["failed"]["sqlstate"].as_str().unwrap_or_default()),
        _ if event["heard"].is_object() => {
            let session = core.session.clone().unwrap_or_default();
            core.heard(now, &session, ms(&event["heard"]["sent"]), &answer(&event["heard"]["answer"]))
        }
        _ => unreachable!("{event}"),
    }
}

#[test]
fn a_session_that_the_keeper_replaces_was_not_taken() {
    let (mut core, at) = (Core::start(Duration::from_secs(9), false, false), Duration::from_millis(5));
    core.connected(at);
    let trust = Duration::from_secs(9);
    core.answered(at, &Answer { alive: true, trust, session: Some("a".into()), ..Answer::default() });
    core.replaces = true;
    core.actions.clear();
    core.answered(at, &Answer::default()); // the wait ends before session_close is answered
    assert_eq!(core.actions, [Action::Cancel, Action::Open { takeover: false }]);
}

#[test]
fn the_core_passes_the_vectors() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/keeper.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap_or_default()).unwrap_or_default();
    assert!(cases.len() > 20, "{file}");
    for case in cases {
        let settings = &case["settings"];
        let is = |name: &str| settings[name].as_bool().unwrap_or(false);
        let mut core = Core::start(ms(&settings["ttl_ms"]), is("takeover"), is("watches"));
        core.chance = settings["random"].as_f64().unwrap_or(1.0);
        for step in case["steps"].as_array().into_iter().flatten() {
            let (now, at) = (ms(&step["at"]), format!("{}: {step}", case["case"]));
            happen(&mut core, now, &step["event"]);
            let actions: Vec<_> = std::mem::take(&mut core.actions).into_iter().map(written).collect();
            assert_eq!(Value::from(actions), step.get("actions").cloned().unwrap_or(Value::Array(vec![])), "{at}");
            assert_eq!(format!("{:?}", core.state(now)).to_lowercase(), step["state"].as_str().unwrap_or(""), "{at}");
            if let Some(until) = step.get("trusted_until") {
                assert_eq!(core.trusted_until, ms(until), "{at}");
            }
            if let Some(deadline) = step.get("deadline") {
                assert_eq!(core.deadline(), (!deadline.is_null()).then(|| ms(deadline)), "{at}");
            }
        }
    }
}
