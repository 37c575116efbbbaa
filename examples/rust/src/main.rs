//! A competing consumer: applies the events of its partitions, each once and in order. See ../../README.md.

use eskit_lease::{BoxError, Leases, Partition};
use std::{env, time::Duration};
use tokio::time::timeout;
use tokio_postgres::types::Type;

/// The position at which the next batch ends.
const NEXT: &str = "SELECT max(position) FROM (SELECT position FROM events WHERE partition = $1 AND position > $2
                    AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 50) AS batch";
const APPLY: &str = "INSERT INTO ledger (position, account, cents, consumer) SELECT position, account, cents, $4
                     FROM events WHERE partition = $1 AND position > $2 AND position <= $3 ORDER BY position";

/// Applies the events of a partition. If no answer comes for a TTL, its connection counts as lost.
async fn consume(partition: Partition, dsn: String, ttl: Duration, consumer: String) -> Result<(), BoxError> {
    let mut db = timeout(ttl, eskit_lease::connect(&dsn)).await??;
    while !partition.token().is_cancelled() {
        let batch = partition.transaction(&mut db, async |tx| {
            let done = partition.position(tx).await?;
            let after = [(&partition.number() as _, Type::INT4), (&done as _, Type::INT8)];
            let Some(last) = tx.query_typed_one(NEXT, &after).await?.get(0) else { return Ok(false) };
            if partition.commit(tx, last, done).await? {
                let to = [(&last as _, Type::INT8), (&consumer as _, Type::TEXT)];
                tx.execute_typed(APPLY, &[after, to].concat()).await?;
            }
            Ok(true)
        });
        if !timeout(ttl, batch).await?? {
            partition.news().await;
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let dsn = env::var("DATABASE_URL")?;
    let group = env::var("CONSUMER_GROUP").unwrap_or("ledger".into());
    let ttl = Duration::from_secs(env::var("TTL").map_or(Ok(10), |ttl| ttl.parse())?);
    let mut settings = Leases::builder(&dsn).ttl(ttl).watch("events");
    if let Ok(name) = env::var("CONSUMER") {
        settings = settings.name(name).takeover(true);
    }
    let leases = settings.open().await?;
    let consumer = leases.name().to_owned();
    let member = leases.join(&group, move |partition| consume(partition, dsn.clone(), ttl, consumer.clone()));
    let drained = async {
        leases.drain_on_signal(ttl).await;
        Ok(())
    };
    tokio::try_join!(member, drained)?;
    Ok(())
}
