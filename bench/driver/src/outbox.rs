//! A lease as outboxes such as pgoutbox keep it in tables. Each name has a row with its holder. Each holder has a row
//! with a deadline, which holds for all its leases. An acquire locks the row of the name, extends the deadline of its
//! own holder, and writes the holder. It does so in one transaction, with a round trip for each statement.

use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::connection::Names;
use crate::measure::{Result, ensure};
use crate::worker::{Operation, Step, Worker};

/// The heartbeat of a holder.
pub const RENEW: &str = "INSERT INTO outbox_sessions (consumer, expires_at) VALUES ($1, clock_timestamp() + interval '1 h') \
                         ON CONFLICT (consumer) DO UPDATE SET expires_at = excluded.expires_at RETURNING true";

struct Outbox {
    client: Client,
    consumer: Uuid,
    /// New names for an acquire and a release. `None`: acquires the held name again.
    names: Option<Names>,
    held: String,
    ensure: Statement,
    lock: Statement,
    renew: Statement,
    hold: Statement,
    release: Statement,
}

pub async fn open(client: Client, operation: Operation, n: usize) -> Result<Box<dyn Worker>> {
    let insert = client.prepare("INSERT INTO outbox_topics (topic) VALUES ($1) ON CONFLICT (topic) DO NOTHING").await?;
    let lock = "SELECT t.consumer, (SELECT s.expires_at > clock_timestamp() FROM outbox_sessions AS s WHERE s.consumer = t.consumer) \
                FROM outbox_topics AS t WHERE t.topic = $1 FOR UPDATE OF t";
    let mut names = Names::of(n);
    let held = names.next();
    client.execute(&insert, &[&held]).await?;
    Ok(Box::new(Outbox {
        consumer: Uuid::from_u128(n as u128),
        names: (operation == Operation::AcquireRelease).then_some(names),
        held,
        ensure: insert,
        lock: client.prepare(lock).await?,
        renew: client.prepare(RENEW).await?,
        hold: client.prepare("UPDATE outbox_topics SET consumer = $2 WHERE topic = $1").await?,
        release: client.prepare("UPDATE outbox_topics SET consumer = NULL WHERE topic = $1 AND consumer = $2").await?,
        client,
    }))
}

impl Outbox {
    async fn acquire(&self, name: &str, new: bool) -> Result<()> {
        self.client.batch_execute("BEGIN").await?;
        if new {
            self.client.execute(&self.ensure, &[&name]).await?;
        }
        let row = self.client.query_one(&self.lock, &[&name]).await?;
        let (holder, alive): (Option<Uuid>, Option<bool>) = (row.try_get(0)?, row.try_get(1)?);
        ensure(holder.is_none_or(|holder| holder == self.consumer) || alive != Some(true), "held")?;
        self.client.query_one(&self.renew, &[&self.consumer]).await?;
        self.client.execute(&self.hold, &[&name, &self.consumer]).await?;
        self.client.batch_execute("COMMIT").await?;
        Ok(())
    }
}

impl Worker for Outbox {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            let Some(names) = &mut self.names else { return self.acquire(&self.held, false).await };
            let name = names.next();
            self.acquire(&name, true).await?;
            ensure(self.client.execute(&self.release, &[&name, &self.consumer]).await? == 1, "not released")
        })
    }
}
