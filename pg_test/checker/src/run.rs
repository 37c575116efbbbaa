//! A run: a database of its own, clients, a storm of faults, calm, and then the checks.

use crate::caller::{Caller, Connection, config, create_tables};
use crate::check;
use crate::crowd::Crowd;
use crate::history::{History, Line, Row, now};
use crate::nemesis::Kind;
use crate::nemesis::Nemesis;
use crate::workload::{CREW, LOCK, MOST, RESOURCES};
use anyhow::{Context, Result};
use clap::Args;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::env::var;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const GONE_WITHIN: Duration = Duration::from_secs(20);

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    seed: u64,
    /// How long the faults go on
    #[arg(long)]
    seconds: u64,
    #[arg(long, default_value_t = 6)]
    clients: u64,
    /// The file of the history
    #[arg(long)]
    history: PathBuf,
    /// How many seconds each client may take to get each resource, once there are no more faults
    #[arg(long, default_value_t = 30)]
    patience: u64,
    /// A command that restarts the server at once, as after a power failure
    #[arg(long)]
    restart: Option<String>,
    /// A kind of fault to do much more often than others
    #[arg(long)]
    favour: Option<Kind>,
    /// Also kills backends, so that the server crashes; they must be on this machine
    #[arg(long)]
    crash: bool,
}

pub async fn run(options: Options) -> Result<bool> {
    let Options { seed, history, .. } = &options;
    let database = format!("checker_{}", std::process::id());
    let mut random = ChaCha8Rng::seed_from_u64(*seed);
    drop(std::fs::remove_file(history));
    let mut crowd = Crowd::new(*seed, &database, history);
    crowd.files().iter().for_each(|file| drop(std::fs::remove_file(file)));
    prepare(&database).await?;

    let own = PathBuf::from(format!("{}.nemesis", history.display()));
    let caller = Arc::new(Caller::new("nemesis", &own)?);
    for (resource, permits) in RESOURCES.into_iter().chain([(CREW, 1)]) {
        caller.write(&Line::Permits { resource: resource.into(), permits });
    }
    let schedule = ChaCha8Rng::seed_from_u64(random.random());
    let mut nemesis = Nemesis::new(caller.clone(), schedule, &database, options.restart.clone(), options.crash);
    nemesis.favour = options.favour;
    for number in 0..options.clients {
        crowd.start(&format!("c{number}"), false)?;
    }
    let end = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(20..250))).await;
        crowd.wake(&caller, false);
        nemesis.strike(&mut crowd).await?;
    }
    calm_down(&mut nemesis, &mut crowd, Duration::from_secs(options.patience)).await;
    collect(&mut nemesis).await;
    merge(&crowd.files(), history)?;
    judge(history, Some((*seed, &database))).await
}

async fn prepare(database: &str) -> Result<()> {
    let own = var("PGDATABASE").unwrap_or("postgres".into());
    let server = Connection::open(&config(&own, "checker")).await.context("cannot reach the server")?;
    // The clients' TTLs must be short against the run.
    for sql in ["ALTER SYSTEM SET eskit_lease.min_ttl = '200ms'", "SELECT pg_reload_conf()"] {
        server.client.batch_execute(sql).await?;
    }
    server.client.batch_execute(&format!("CREATE DATABASE {database}")).await?;
    let db = Connection::open(&config(database, "checker")).await?;
    db.client.batch_execute("CREATE EXTENSION eskit_lease").await?;
    db.client.batch_execute(&format!("SELECT eskit_lease.semaphore_create('{CREW}', 1)")).await?;
    let mut slots = RESOURCES.to_vec();
    slots.push((LOCK, 1));
    for (resource, permits) in slots.iter_mut().filter(|(_, permits)| *permits > 1) {
        db.client.batch_execute(&format!("SELECT eskit_lease.semaphore_create('{resource}', {permits})")).await?;
        *permits = MOST.max(*permits);
    }
    create_tables(&db.client, &slots).await
}

/// Ends the faults. Each client must then be served, and leave.
async fn calm_down(nemesis: &mut Nemesis, crowd: &mut Crowd, patience: Duration) {
    nemesis.make_peace(crowd).await;
    let clients = crowd.processes.iter().map(|process| process.name.clone()).collect();
    let resources = RESOURCES.iter().map(|(resource, _)| (*resource).to_owned()).collect();
    nemesis.caller.write(&Line::Calm { at: now(), clients, resources });
    crowd.calm().await;
    // A client that was preparing a transaction when the storm ended may have done so by now.
    sleep(Duration::from_millis(500)).await;
    drop(nemesis.resolve().await);
    crowd.all_served(patience).await;
    crowd.all_gone(GONE_WITHIN).await;
}

/// Records the committed rows. Waits for the worker to clean up, and records what remains.
async fn collect(nemesis: &mut Nemesis) {
    nemesis.insist("ALTER SYSTEM SET eskit_lease.row_retention = 0").await;
    nemesis.insist("SELECT pg_reload_conf()").await;
    let left = "SELECT 'sessions', count(*) FROM eskit_lease._sessions
        UNION ALL SELECT 'leases', count(*) FROM eskit_lease._leases
        UNION ALL SELECT 'places in line', count(*) FROM eskit_lease._waiters
        UNION ALL SELECT 'successions', count(*) FROM eskit_lease._successions
        UNION ALL SELECT name, value FROM eskit_lease.stats() WHERE name IN ('sessions_alive', 'resources_dirty', 'calls_waiting')";
    let until = Instant::now() + GONE_WITHIN;
    let counts = loop {
        nemesis.insist("SELECT eskit_lease.session_sweep()").await;
        let counts: Vec<(String, i64)> = nemesis
            .insist(left)
            .await
            .into_iter()
            .filter_map(|row| {
                let [Some(what), Some(count)] = row.as_slice() else { return None };
                Some((what.clone(), count.parse().ok()?))
            })
            .collect();
        if counts.iter().all(|(_, count)| *count == 0) || Instant::now() > until {
            break counts;
        }
        sleep(Duration::from_millis(50)).await;
    };
    for (what, count) in counts {
        nemesis.caller.write(&Line::Left { what, count });
    }
    for row in nemesis.insist("SELECT to_jsonb(e) FROM elements AS e").await {
        if let Some(row) = row.first().and_then(Option::as_deref).and_then(|row| serde_json::from_str::<Row>(row).ok())
        {
            nemesis.caller.write(&Line::Row(row));
        }
    }
    nemesis.insist("ALTER SYSTEM RESET eskit_lease.row_retention").await;
    nemesis.insist("SELECT pg_reload_conf()").await;
}

fn merge(files: &[PathBuf], history: &Path) -> Result<()> {
    let mut all = File::create(history)?;
    for file in files {
        // Drops the unfinished last line of a client that was killed.
        let text = std::fs::read(file)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        std::io::Write::write_all(&mut all, &text[..whole])?;
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// Prints the faults that the checks have found. Drops the database if there are none.
pub async fn judge(path: &Path, run: Option<(u64, &str)>) -> Result<bool> {
    let history = History::read(path)?;
    let faults = check::all(&history);
    println!(
        "{} calls, {} faults done, {} fenced writes, {} sessions",
        history.calls.len(),
        history.faults.len(),
        history.rows.len(),
        history.calls.iter().filter(|call| call.verb == crate::history::Verb::Open && call.answer.is_some()).count(),
    );
    for fault in &faults {
        println!("{fault}");
    }
    match (faults.is_empty(), run) {
        (false, Some((seed, _))) => println!("seed {seed}, the whole history: {}", path.display()),
        (true, Some((_, database))) => {
            let own = var("PGDATABASE").unwrap_or("postgres".into());
            let server = Connection::open(&config(&own, "checker")).await?;
            server.client.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await?;
        }
        _ => (),
    }
    Ok(faults.is_empty())
}
