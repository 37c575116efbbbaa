//! Notifications: hints on the channel `eskit_lease`, sent by the worker alone. The truth is the row, and the revision in each
//! heartbeat. A pass sends one message for each slot whose owner has changed, saying how it stands now.

use crate::call::Call;
use crate::claim::Seat;
use crate::liveness::databases::Counter;
use crate::spi::{Statement, Value};
use crate::sweep::Pass;
use crate::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::{INT4ARRAYOID, TEXTARRAYOID};
use serde::Serialize;
use std::collections::HashSet;

static STATE: Statement =
    Statement::reads(include_str!("../../sql/query/worker/state.sql"), &[TEXTARRAYOID, INT4ARRAYOID]);
static NOTIFY: Statement = Statement::tidies(include_str!("../../sql/query/worker/notify.sql"), &[TEXTARRAYOID]);

/// Numbers that may be beyond 2^53 are strings, as JavaScript would round them.
#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    resource: &'a str,
    slot: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<&'a str>,
    fence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
}

struct Lease {
    resource: String,
    slot: i32,
    fence: i64,
    session: Option<Uuid>,
    consumer: Option<String>,
}

/// Work items have become free in a queue.
#[derive(Serialize)]
struct Items<'a> {
    event: &'static str,
    queue: &'a str,
}

/// Sends, with the commit of this transaction, how the resources stand, and where there are items.
pub fn send(call: &Call, pass: &Pass) {
    let items = pass.items.iter().filter_map(|queue| serde_json::to_string(&Items { event: "items", queue }).ok());
    let events: Vec<String> = of_leases(call, &pass.changed).into_iter().chain(items).collect();
    call.db().execute(&NOTIFY, vec![Value::Texts(events.iter().map(String::as_str).collect())]);
    call.database.add(Counter::Notifications, events.len() as u64);
}

fn of_leases(call: &Call, changed: &HashSet<Seat>) -> Vec<String> {
    if changed.is_empty() {
        return Vec::new();
    }
    let (names, slots): (Vec<&str>, Vec<i32>) = changed.iter().map(|(name, slot)| (name.as_str(), *slot)).unzip();
    let leases = call.db().run(&STATE, vec![Value::Texts(names), Value::Ints(&slots)], |row| Lease {
        resource: row.text(1),
        slot: row.int(2),
        fence: row.long(3),
        session: row.get(4),
        consumer: row.get::<Text>(5).map(|text| text.0),
    });
    let revision = |lease: &Lease| {
        let at = call.shared.find(call.home, lease.session?)?;
        call.shared.look(at).map(|standing| standing.revision.to_string())
    };
    leases
        .iter()
        .filter_map(|lease| {
            let event = Event {
                event: if lease.consumer.is_some() { "granted" } else { "released" },
                resource: &lease.resource,
                slot: lease.slot,
                consumer: lease.consumer.as_deref(),
                fence: lease.fence.to_string(),
                revision: revision(lease),
            };
            serde_json::to_string(&event).ok()
        })
        .collect()
}
