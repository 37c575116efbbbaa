//! `status`, `top` and `watch`: who holds what.

use crate::Failure;
use crate::options::{Show, Top};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

// A fence is a text, as many readers of JSON know no number so great.
const HELD: &str = "SELECT row_to_json(t)::text FROM (
    SELECT resource, slot, consumer, fence::text, date_trunc('second', held_for)::text AS held_for, trust_ms, waiters
    FROM eskit_lease.leases
    WHERE state = 'held' AND ($1::text[] = '{}' OR resource = ANY ($1)) ORDER BY resource, slot) AS t";
const TOP: &str = "SELECT row_to_json(t)::text FROM (
    SELECT resource, kind, held, slots, consumer, date_trunc('second', held_for)::text AS held_for, trust_ms, waiters,
        date_trunc('second', waiting_for)::text AS waiting_for, date_trunc('second', open_for)::text AS open_for,
        losses, lag
    FROM eskit_lease.top WHERE $1::text[] = '{}' OR resource = ANY ($1)) AS t";

type Row = Map<String, Value>;

pub async fn status(dsn: &str, show: &Show) -> Result<u8, Failure> {
    let rows = read(&eskit_lease::connect(dsn).await?, HELD, &show.names).await?;
    print(&rows, show.json);
    Ok(u8::from(rows.is_empty() && !show.names.is_empty()))
}

pub async fn top(dsn: &str, top: &Top) -> Result<u8, Failure> {
    let db = eskit_lease::connect(dsn).await?;
    let mut looks = 0;
    loop {
        let rows = read(&db, TOP, &top.show.names).await?;
        if !top.show.json && stdout().is_terminal() {
            print!("\x1b[2J\x1b[H"); // clears the screen
        }
        print(&rows, top.show.json);
        looks += 1;
        if top.count == Some(looks) {
            return Ok(0);
        }
        sleep(top.interval).await;
    }
}

/// Tells who holds what, and then each change.
pub async fn watch(dsn: &str, watch: &Top) -> Result<u8, Failure> {
    let db = eskit_lease::connect(dsn).await?;
    let (mut before, mut looks) = (BTreeMap::new(), 0);
    loop {
        let mut now = BTreeMap::new();
        for row in read(&db, HELD, &watch.show.names).await? {
            now.insert((text(&row["resource"]), row["slot"].as_i64()), row);
        }
        for (key, row) in &now {
            if before.get(key).is_none_or(|before: &Row| before["fence"] != row["fence"]) {
                tell("granted", row, watch.show.json);
            }
        }
        for (key, row) in &before {
            if !now.contains_key(key) {
                tell("free", row, watch.show.json);
            }
        }
        before = now;
        looks += 1;
        if watch.count == Some(looks) {
            return Ok(0);
        }
        sleep(watch.interval).await;
    }
}

async fn read(db: &Client, sql: &str, names: &[String]) -> Result<Vec<Row>, Failure> {
    let rows = db.query_typed(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
    let objects = rows.iter().map(|row| serde_json::from_str(row.get(0)));
    objects.collect::<Result<_, _>>().map_err(|error| Failure::new(crate::UNAVAILABLE, error))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn tell(event: &str, row: &Row, json: bool) {
    if json {
        let mut told = Row::new();
        told.insert("event".into(), event.into());
        let fields = ["resource", "slot", "consumer", "fence"].map(|field| (field.to_owned(), row[field].clone()));
        told.extend(fields);
        println!("{}", Value::Object(told));
    } else {
        let [resource, consumer, fence] = ["resource", "consumer", "fence"].map(|field| text(&row[field]));
        println!("{event:7} {resource} {} {consumer} {fence}", row["slot"]);
    }
}

/// Prints rows as lines of JSON, or as a table.
fn print(rows: &[Row], json: bool) {
    if json {
        rows.iter().for_each(|row| println!("{}", Value::Object(row.clone())));
        return;
    }
    let Some(first) = rows.first() else { return };
    let head = first.keys().map(|name| name.to_uppercase()).collect();
    let lines: Vec<Vec<String>> =
        [head].into_iter().chain(rows.iter().map(|row| row.values().map(text).collect())).collect();
    let widths: Vec<usize> =
        (0..first.len()).map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0)).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
