//! A competing consumer, with tokio-postgres: applies the events of its partitions. ../../README.md explains steps (1) to (9).

use std::sync::{LazyLock as Lazy, atomic::AtomicBool, atomic::Ordering::SeqCst};
use std::{env, fs, process::id, time::Duration, time::Instant};
use tokio::{signal::unix::SignalKind, signal::unix::signal, time::Timeout, time::sleep, time::timeout};
use tokio_postgres::{Client, Error, NoTls, error::SqlState, types::ToSql, types::Type};

const OPEN: &str = "SELECT session FROM eskit_lease.session_open($1, make_interval(secs => $2), takeover => true)";
const HEARTBEAT: &str = "SELECT * FROM eskit_lease.session_watch($1, 'events')"; // it watches, too
const WAIT: &str = "SELECT * FROM eskit_lease.session_wait($1, $2, CASE WHEN $3 THEN interval '100 ms' END)";
const RELEASE: &str =
    "SELECT eskit_lease.group_release($1, partition, fence) FROM eskit_lease.group_assignment($1, $2)";
const OWNED: &str =
    "SELECT array_agg(partition), array_agg(fence) FROM eskit_lease.group_assignment($1, $2) WHERE state = 'owned'";
const NEWS: &str = "SELECT mine.* FROM unnest($1, $2) AS mine (partition, fence), eskit_lease.cursor_position($3, partition) AS done WHERE EXISTS \
                    (SELECT FROM events AS e WHERE e.partition = mine.partition AND e.position > done AND e.position < eskit_lease.position_horizon()) \
                    ORDER BY random()";
const READ: &str = "SELECT position, account, cents, done FROM eskit_lease.cursor_position($1, $2) AS done, events WHERE partition = $2 AND position > done \
                    AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 50";
const COMMIT: &str = "SELECT eskit_lease.cursor_commit($1, $2, $3, $4, $5)";
const APPLY: &str = "INSERT INTO ledger (position, account, cents, consumer) VALUES ($1, $2, $3, $4)";

static GROUP: Lazy<String> = Lazy::new(|| env::var("CONSUMER_GROUP").unwrap_or("ledger".into()));
static HOST: Lazy<String> = Lazy::new(|| fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default());
static CONSUMER: Lazy<String> = Lazy::new(|| env::var("CONSUMER").unwrap_or(format!("rust-{}-{}", HOST.trim(), id())));
static TTL: Lazy<f64> = Lazy::new(|| env::var("TTL").ok().and_then(|ttl| ttl.parse().ok()).unwrap_or(10.0));
static STOPPING: AtomicBool = AtomicBool::new(false);
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
/// A value with its type, as named prepared statements may not work through PgBouncer in transaction mode.
type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// Bounds the wait for an answer by a TTL: a connection that is silent for longer counts as lost.
fn soon<T: Future>(answer: T) -> Timeout<T> {
    timeout(Duration::from_secs_f64(*TTL), answer)
}

/// Returns the session's revision, when it was asked for, and its trust from then on. Sleeps here if too many calls wait.
async fn ask(db: &Client, sql: &str, values: &[Value<'_>]) -> Result<(i64, Instant, Duration)> {
    let asked = Instant::now(); // (3) from before the call, as the answer may be long on its way
    let answer = soon(db.query_typed_one(sql, values)).await??;
    match answer.get("reason") {
        reason if !answer.get::<_, bool>("alive") => return Err(format!("the session has ended: {reason}").into()),
        "wait_limit" => sleep(Duration::from_millis(answer.get::<_, i32>("retry_ms").try_into()?)).await,
        _ => (),
    }
    Ok((answer.get("revision"), asked, Duration::from_millis(answer.get::<_, i32>("trust_ms").try_into()?)))
}

async fn consume() -> Result<()> {
    let (mut db, connection) = soon(tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls)).await??;
    tokio::spawn(connection); // if it fails, the next call fails
    let session: uuid::Uuid =
        soon(db.query_typed_one(OPEN, &[(&*CONSUMER, Type::TEXT), (&*TTL, Type::FLOAT8)])).await??.get(0); // (1)
    let me: [Value<'_>; 1] = [(&session, Type::UUID)];
    let member: [Value<'_>; 2] = [(&*GROUP, Type::TEXT), (&session, Type::UUID)];
    let (mut revision, mut asked, mut trust) = ask(&db, HEARTBEAT, &me).await?;
    soon(db.query_typed("SELECT eskit_lease.group_join($1, $2)", &member)).await??; // (2)
    let (mut mine, mut fences, mut known): (Option<Vec<i32>>, Option<Vec<i64>>, i64) = (None, None, 0);
    while !STOPPING.load(SeqCst) {
        if known != revision {
            known = revision; // (4)
            soon(db.query_typed(&format!("{RELEASE} WHERE state = 'revoking'"), &member)).await??; // no work is in hand
            let owned = soon(db.query_typed_one(OWNED, &member)).await??;
            (mine, fences) = (owned.get(0), owned.get(1));
        }
        let shares: [Value<'_>; 3] = [(&mine, Type::INT4_ARRAY), (&fences, Type::INT8_ARRAY), (&*GROUP, Type::TEXT)];
        let news = soon(db.query_typed(NEWS, &shares)).await??;
        for share in &news {
            if STOPPING.load(SeqCst) || known != revision || asked.elapsed() >= trust {
                break; // (3)
            }
            match soon(apply_batch(&mut db, share.get(0), share.get(1))).await? {
                Err(e) if ["LF001", "55P03", "40001"].contains(&e.code().map_or("", SqlState::code)) => known = 0, // (6)
                applied => applied?,
            }
            if asked.elapsed() >= trust / 3 {
                (revision, asked, trust) = ask(&db, HEARTBEAT, &me).await?; // (7)
            }
        }
        (revision, asked, trust) = match news.is_empty() || asked.elapsed() >= trust {
            true => ask(&db, WAIT, &[me[0].clone(), (&revision, Type::INT8), (&!news.is_empty(), Type::BOOL)]).await?,
            false => ask(&db, HEARTBEAT, &me).await?,
        };
    }
    soon(db.query_typed("SELECT eskit_lease.session_drain($1)", &me)).await??; // (8)
    soon(db.query_typed(RELEASE, &member)).await??;
    soon(db.query_typed("SELECT eskit_lease.session_close($1)", &me)).await??;
    Ok(())
}

/// (5) Applies the next events of a partition and moves its position, in one transaction under the fence.
async fn apply_batch(db: &mut Client, partition: i32, fence: i64) -> std::result::Result<(), Error> {
    let transaction = db.transaction().await?;
    let [group, of]: [Value<'_>; 2] = [(&*GROUP, Type::TEXT), (&partition, Type::INT4)];
    let batch = transaction.query_typed(READ, &[group.clone(), of.clone()]).await?;
    let [last, done]: [Option<i64>; 2] = [batch.last().map(|e| e.get(0)), batch.first().map(|e| e.get(3))];
    let to: [Value<'_>; 5] = [group, of, (&last, Type::INT8), (&fence, Type::INT8), (&done, Type::INT8)];
    if last.is_some() && transaction.query_typed_one(COMMIT, &to).await?.get(0) {
        for event in &batch {
            let (position, account, cents): (i64, &str, i64) = (event.get(0), event.get(1), event.get(2));
            let entry: [Value<'_>; 4] =
                [(&position, Type::INT8), (&account, Type::TEXT), (&cents, Type::INT8), (&*CONSUMER, Type::TEXT)];
            transaction.execute_typed(APPLY, &entry).await?;
        }
    }
    transaction.commit().await
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move { STOPPING.store(terminate.recv().await.is_some(), SeqCst) });
    while !STOPPING.load(SeqCst) {
        if let Err(error) = consume().await {
            eprintln!("{} begins anew: {}", *CONSUMER, error.source().unwrap_or(error.as_ref())); // (9)
            sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}
