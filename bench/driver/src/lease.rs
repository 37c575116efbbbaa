//! A client of eskit_lease that holds a lease or waits for it. The measurements of hand-over share it.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::connection::connect;
use crate::measure::{Result, ensure};

pub struct Consumer {
    client: Client,
    session: Uuid,
    acquire: Statement,
    release: Statement,
    heartbeat: Statement,
    wait: Statement,
}

/// The answer of a heartbeat.
pub struct Alive {
    pub revision: i64,
    /// Seconds since 1970.
    pub expires_at: f64,
}

const OPEN: &str = "SELECT session FROM eskit_lease.session_open($1, make_interval(secs => $2), $3)";

impl Consumer {
    pub async fn open(consumer: &str, ttl: Duration, attach: bool) -> Result<Self> {
        let client = connect().await?;
        let session = client.query_one(OPEN, &[&consumer, &ttl.as_secs_f64(), &attach]).await?.try_get(0)?;
        let heartbeat =
            "SELECT alive, revision, extract(epoch FROM expires_at)::float8 FROM eskit_lease.session_heartbeat($1)";
        Ok(Self {
            session,
            acquire: client.prepare("SELECT reason, fence FROM eskit_lease.lease_acquire($1, $2, $3)").await?,
            release: client.prepare("SELECT eskit_lease.lease_release($1, $2)").await?,
            heartbeat: client.prepare(heartbeat).await?,
            wait: client.prepare("SELECT reason FROM eskit_lease.session_wait($1, $2, '10 s')").await?,
            client,
        })
    }

    /// Opens another session on the same connection, after the former one has expired.
    pub async fn reopen(&mut self, consumer: &str, ttl: Duration) -> Result<()> {
        self.session = self.client.query_one(OPEN, &[&consumer, &ttl.as_secs_f64(), &false]).await?.try_get(0)?;
        Ok(())
    }

    async fn ask(&self, name: &str, queue: bool, expected: &str) -> Result<Option<i64>> {
        let row = self.client.query_one(&self.acquire, &[&name, &self.session, &queue]).await?;
        let reason: String = row.try_get(0)?;
        ensure(reason == expected, format!("{reason} and not {expected}"))?;
        Ok(row.try_get(1)?)
    }

    /// Acquires the lease and returns its fence.
    pub async fn acquire(&self, name: &str) -> Result<i64> {
        self.ask(name, false, "granted").await?.ok_or_else(|| "no fence".into())
    }

    /// Returns the fence that was granted while this consumer waited. This answer means that the grant is committed.
    pub async fn held(&self, name: &str) -> Result<i64> {
        self.ask(name, false, "already_held").await?.ok_or_else(|| "no fence".into())
    }

    /// Takes a place in line. Returns the revision whose change the consumer must wait for.
    pub async fn queue(&self, name: &str) -> Result<i64> {
        let revision = self.heartbeat().await?.revision; // from before it asks: a grant in between is no news to a later one
        self.ask(name, true, "queued").await?;
        Ok(revision)
    }

    pub async fn release(&self, name: &str, fence: i64) -> Result<()> {
        ensure(self.client.query_one(&self.release, &[&name, &fence]).await?.try_get(0)?, "not held any more")
    }

    pub async fn heartbeat(&self) -> Result<Alive> {
        let row = self.client.query_one(&self.heartbeat, &[&self.session]).await?;
        ensure(row.try_get(0)?, "not alive")?;
        Ok(Alive { revision: row.try_get(1)?, expires_at: row.try_get(2)? })
    }

    /// Waits for a change of the revision. Returns when the answer came.
    pub async fn news(&self, revision: i64) -> Result<Instant> {
        let row = self.client.query_one(&self.wait, &[&self.session, &revision]).await?;
        let arrived = Instant::now();
        let reason: &str = row.try_get(0)?;
        ensure(reason == "changed", format!("the wait ended by {reason}"))?;
        Ok(arrived)
    }
}

/// Checks whether the next holder is waiting.
pub struct Watch {
    client: Client,
    waiting: Statement,
}

impl Watch {
    /// Takes a statement that returns whether the next holder is waiting.
    pub async fn open(waiting: &str) -> Result<Self> {
        let client = connect().await?;
        Ok(Self { waiting: client.prepare(waiting).await?, client })
    }

    pub async fn session_wait() -> Result<Self> {
        Self::open("SELECT value > 0 FROM eskit_lease.stats() WHERE name = 'calls_waiting'").await
    }

    pub async fn advisory_lock() -> Result<Self> {
        Self::open("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").await
    }

    pub async fn until_waiting(&self) -> Result<()> {
        while !self.client.query_one(&self.waiting, &[]).await?.try_get::<_, bool>(0)? {
            sleep(Duration::from_micros(500)).await;
        }
        Ok(())
    }
}
