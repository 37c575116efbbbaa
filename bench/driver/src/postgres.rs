//! The operations on PostgreSQL that are one prepared statement, or two.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::connection::{Names, connect, to};
use crate::measure::{Result, ensure};
use crate::outbox;
use crate::worker::{Operation, Step, Worker};

const OPEN: &str = "SELECT session FROM eskit_lease.session_open($1, '1 h')";

pub async fn open(operation: Operation, system: &str, n: usize) -> Result<Box<dyn Worker>> {
    let client = if system == "eskit_socket" { to("PGSOCKET").await?.0 } else { connect().await? };
    if system == "update_async" {
        client.batch_execute("SET synchronous_commit = off").await?;
    }
    let session = async || -> Result<Uuid> {
        let row = client.query_one(OPEN, &[&format!("driver-{n}")]).await?;
        Ok(row.try_get(0)?)
    };
    let row = i32::try_from(n)?;
    match (operation, system) {
        (Operation::Heartbeat, "select") => One::boxed(client, "SELECT true", Vec::new()).await,
        (Operation::Heartbeat, "eskit" | "eskit_socket") => {
            let session = session().await?;
            One::boxed(client, "SELECT * FROM eskit_lease.session_heartbeat($1)", vec![Box::new(session)]).await
        }
        (Operation::Heartbeat, "update" | "update_async") => {
            let update = "UPDATE plain_sessions SET beat_at = clock_timestamp() WHERE n = $1 RETURNING true";
            One::boxed(client, update, vec![Box::new(row)]).await
        }
        (Operation::Heartbeat, "outbox") => {
            One::boxed(client, outbox::RENEW, vec![Box::new(Uuid::from_u128(n as u128))]).await
        }
        (Operation::Reacquire, "eskit") => {
            let session = session().await?;
            let name = format!("driver/own/{session}");
            let acquire = "SELECT * FROM eskit_lease.lease_acquire($1, $2)";
            One::boxed(client, acquire, vec![Box::new(name), Box::new(session)]).await
        }
        (Operation::AcquireRelease, "eskit") => {
            let session = session().await?;
            let acquire = "SELECT fence FROM eskit_lease.lease_acquire($1, $2)";
            Two::boxed(client, n, acquire, "SELECT eskit_lease.lease_release($1, $2)", session).await
        }
        (Operation::AcquireRelease, "by_hand") => {
            let session = session().await?;
            let acquire = "INSERT INTO plain_leases AS l (resource, slot, session, fence, timeline, granted_at) \
                           VALUES ($1, 0, $2, nextval('plain_fences'), 1, clock_timestamp()) ON CONFLICT (resource, slot) \
                           DO UPDATE SET session = excluded.session, fence = excluded.fence, granted_at = excluded.granted_at, \
                           released_at = NULL WHERE l.session IS NULL RETURNING fence";
            let release = "UPDATE plain_leases SET session = NULL, released_at = clock_timestamp() \
                           WHERE resource = $1 AND slot = 0 AND fence = $2 RETURNING true";
            Two::boxed(client, n, acquire, release, session).await
        }
        (Operation::AcquireRelease, "advisory") => Advisory::boxed(client, n).await,
        (Operation::AcquireRelease | Operation::Reacquire, "outbox") => outbox::open(client, operation, n).await,
        _ => Err(format!("{system} has no {operation:?}").into()),
    }
}

type Value = Box<dyn ToSql + Send + Sync>;

/// One statement, whose first column says whether it succeeded.
struct One {
    client: Client,
    statement: Statement,
    values: Vec<Value>,
}

impl One {
    async fn boxed(client: Client, sql: &str, values: Vec<Value>) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Self { statement: client.prepare(sql).await?, client, values }))
    }
}

impl Worker for One {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            let values: Vec<&(dyn ToSql + Sync)> = self.values.iter().map(|value| value.as_ref() as _).collect();
            let row = self.client.query_one(&self.statement, &values).await?;
            ensure(row.try_get(0)?, "refused")
        })
    }
}

/// Acquires a new name for a fence, and releases it by that fence.
struct Two {
    client: Client,
    acquire: Statement,
    release: Statement,
    names: Names,
    session: Uuid,
}

impl Two {
    async fn boxed(client: Client, n: usize, acquire: &str, release: &str, session: Uuid) -> Result<Box<dyn Worker>> {
        let (acquire, release) = (client.prepare(acquire).await?, client.prepare(release).await?);
        Ok(Box::new(Self { client, acquire, release, names: Names::of(n), session }))
    }
}

impl Worker for Two {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            let name = self.names.next();
            let fence: i64 = self.client.query_one(&self.acquire, &[&name, &self.session]).await?.try_get(0)?;
            let released = self.client.query_one(&self.release, &[&name, &fence]).await?;
            ensure(released.try_get(0)?, "not released")
        })
    }
}

/// The advisory lock of a database session: stored nowhere, and gone with the connection.
struct Advisory {
    client: Client,
    lock: Statement,
    unlock: Statement,
    names: Names,
}

impl Advisory {
    async fn boxed(client: Client, n: usize) -> Result<Box<dyn Worker>> {
        let lock = client.prepare("SELECT pg_try_advisory_lock(hashtextextended($1, 0))").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await?;
        Ok(Box::new(Self { client, lock, unlock, names: Names::of(n) }))
    }
}

impl Worker for Advisory {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            let name = self.names.next();
            ensure(self.client.query_one(&self.lock, &[&name]).await?.try_get(0)?, "not locked")?;
            ensure(self.client.query_one(&self.unlock, &[&name]).await?.try_get(0)?, "not unlocked")
        })
    }
}
