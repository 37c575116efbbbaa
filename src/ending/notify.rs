//! Notifications: hints on the channel `eskit_lease`. A pass sends them; the truth is the row, and the revision in each
//! heartbeat. A pass sends one message for each slot whose owner has changed, with the present owner, and one for each
//! queue in which items have become free.
//!
//! PostgreSQL does not tell whether any process listens, and a message costs a transaction id. So
//! `eskit_lease.notify` can leave messages out, always or while no listener asks for them.

use super::sweep::Pass;
use crate::base::error::Result;
use crate::base::interval;
use crate::base::settings::{NOTIFY, Notify};
use crate::call::{Call, Given, enter};
use crate::lease::candidate::Grant;
use crate::lease::row::{Leases, Seat};
use crate::pg::notify::notify;
use crate::pg::{catalog, clock};
use crate::session::{self, holders};
use crate::shmem::counters::Counter;
use crate::shmem::databases::Database;
use crate::shmem::word::State;
use pgrx::Uuid;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::io::{self, Write};
use std::rc::Rc;

/// The channel.
const CHANNEL: &CStr = c"eskit_lease";

/// A change of owner. Numbers that may exceed 2^53 are strings, because JavaScript would round them.
#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    resource: &'a str,
    slot: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<&'a str>,
    fence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'a str>,
}

/// The holder of a lease.
struct Owner {
    consumer: String,
    revision: Option<String>,
}

impl Owner {
    /// Returns the holder for a session that has a row.
    fn of(call: &Call, session: Uuid) -> Option<Owner> {
        let standing = call.shared.find(call.home, session).and_then(|at| call.shared.look(at));
        let lives = standing.as_ref().is_some_and(|standing| standing.state == State::Alive);
        // The row of a session that does not live may be gone.
        let consumer = if lives { holders::name(session)? } else { session::row(session)?.consumer };
        Some(Owner { consumer, revision: standing.map(|standing| standing.revision.to_string()) })
    }
}

/// Work items of a queue have become free.
#[derive(Serialize)]
struct Items<'a> {
    event: &'static str,
    queue: &'a str,
}

/// Requests messages for a listener, for a while, where `eskit_lease.notify` is `auto`.
#[pg_extern(schema = "eskit_lease")]
fn notify_me(duration: Option<Interval>) -> Result<()> {
    let shared = enter()?;
    let ms = interval::delay_ms("duration", duration.given("duration")?)?;
    let database = shared.database(catalog::home())?;
    database.listen_until(clock::now() + u64::from(ms.cast_unsigned()) * 1_000);
    Ok(())
}

/// Returns whether a pass has news for listeners that must be sent.
pub fn has_news(database: &Database, pass: &Pass) -> bool {
    let is_wanted = match NOTIFY.get() {
        Notify::On => true,
        Notify::Off => false,
        Notify::Auto => database.is_listened_to(),
    };
    is_wanted && !(pass.changed.is_empty() && pass.items.is_empty())
}

/// Sends messages with the commit of this transaction: the present owners of the changed slots, and the queues with
/// free items.
pub fn send(call: &Call, pass: &Pass) {
    let items = pass.items.iter().filter_map(|queue| text(&Items { event: "items", queue }));
    let events: Vec<CString> = of_leases(call, &pass.changed).into_iter().chain(items).collect();
    notify(CHANNEL, &events);
    call.database.add(Counter::Notifications, events.len() as u64);
}

fn text(event: &impl Serialize) -> Option<CString> {
    let mut json = Vec::new();
    event.serialize(&mut Serializer::with_formatter(&mut json, Ascii)).ok()?;
    CString::new(json).ok()
}

/// JSON in ASCII, which every encoding contains. Users choose the names, and PostgreSQL ends the connection of a
/// listener whose encoding cannot show a notification.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, into: &mut W, text: &str) -> io::Result<()> {
        text.chars().try_for_each(|character| {
            if character.is_ascii() {
                return into.write_all(&[character as u8]);
            }
            character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(into, "\\u{unit:04x}"))
        })
    }
}

fn of_leases(call: &Call, changed: &BTreeMap<Seat, Option<Grant>>) -> Vec<CString> {
    if changed.is_empty() {
        return Vec::new();
    }
    // Each session is looked up once: a storm changes many leases of few sessions.
    let (leases, mut owners) = (Leases::open(), HashMap::new());
    let mut owns =
        |session: Uuid| owners.entry(session).or_insert_with(|| Owner::of(call, session).map(Rc::new)).clone();
    let mut event = |(resource, slot): &Seat, granted: Option<Grant>| {
        // The session that was granted the slot may be gone by now.
        let known = granted.and_then(|grant| Some((grant.fence, Some(owns(grant.session)?))));
        let (fence, owner) = match known {
            Some(known) => known,
            None => leases.row(resource, *slot).map(|row| (row.fence, row.session.and_then(&mut owns)))?,
        };
        let event = Event {
            event: if owner.is_some() { "granted" } else { "released" },
            resource,
            slot: *slot,
            consumer: owner.as_ref().map(|owner| owner.consumer.as_str()),
            fence: fence.to_string(),
            revision: owner.as_ref().and_then(|owner| owner.revision.as_deref()),
        };
        text(&event)
    };
    changed.iter().filter_map(|(seat, granted)| event(seat, *granted)).collect()
}
