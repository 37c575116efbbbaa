//! PostgreSQL's own ways to wake another connection: NOTIFY, and an advisory lock that the other connection waits for.
//! NOTIFY is measured bare, with a row that changes its owner, and there and back. A NOTIFY wakes all listeners of the
//! database, on any channel. So each client listens only for its own rounds.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::{Client, Statement};

use crate::baton::{Baton, Round, between, settle};
use crate::connection::{connect, listener};
use crate::lease::Watch;
use crate::measure::{Result, ensure};

/// Notifies another connection, which is listening, by one statement.
struct Notify {
    client: Client,
    statement: Statement,
    listener: Client,
    heard: UnboundedReceiver<()>,
}

pub async fn notify(sql: &str) -> Result<Box<dyn Baton>> {
    let client = connect().await?;
    let (listener, heard) = listener().await?;
    let statement = client.prepare(sql).await?;
    Ok(Box::new(Notify { client, statement, listener, heard }))
}

/// Changes the owner of a row and notifies the next one, in one statement, as the release of a lease does.
pub async fn update_and_notify() -> Result<Box<dyn Baton>> {
    let client = connect().await?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS baton (n integer PRIMARY KEY, owner integer NOT NULL)").await?;
    client.batch_execute("INSERT INTO baton VALUES (1, 0) ON CONFLICT DO NOTHING").await?;
    let update = "UPDATE baton SET owner = owner + 1 WHERE n = 1 RETURNING owner";
    notify(&format!("WITH passed AS ({update}) SELECT pg_notify('driver_baton', '') FROM passed")).await
}

impl Baton for Notify {
    fn pass(&mut self) -> Round<'_> {
        Box::pin(async {
            self.listener.batch_execute("LISTEN driver_baton").await?;
            settle().await;
            let start = Instant::now();
            let sent = self.client.query(&self.statement, &[]);
            let heard = async {
                let heard = self.heard.recv().await;
                (heard, Instant::now())
            };
            let (sent, (heard, arrived)) = tokio::join!(sent, heard);
            sent?;
            ensure(heard.is_some(), "the connection that listens has ended")?;
            self.listener.batch_execute("UNLISTEN *").await?;
            Ok(arrived - start)
        })
    }
}

/// Each connection notifies the other: the second one as soon as it is notified.
struct ThereAndBack {
    ends: [(Client, UnboundedReceiver<()>, Statement); 2],
}

pub async fn there_and_back() -> Result<Box<dyn Baton>> {
    let (a, heard_by_a) = listener().await?;
    let (b, heard_by_b) = listener().await?;
    let (there, back) = (a.prepare("NOTIFY driver_there").await?, b.prepare("NOTIFY driver_back").await?);
    Ok(Box::new(ThereAndBack { ends: [(a, heard_by_a, there), (b, heard_by_b, back)] }))
}

impl Baton for ThereAndBack {
    fn pass(&mut self) -> Round<'_> {
        Box::pin(async {
            let [(a, heard_by_a, there), (b, heard_by_b, back)] = &mut self.ends;
            tokio::try_join!(a.batch_execute("LISTEN driver_back"), b.batch_execute("LISTEN driver_there"))?;
            settle().await;
            let start = Instant::now();
            let reply = async {
                heard_by_b.recv().await.ok_or("the connection that listens has ended")?;
                b.query(back, &[]).await?;
                Result::Ok(())
            };
            let ask = async {
                a.query(there, &[]).await?;
                Result::Ok(())
            };
            let heard = async {
                heard_by_a.recv().await.ok_or("the connection that listens has ended")?;
                Result::Ok(Instant::now())
            };
            let ((), (), arrived) = tokio::try_join!(ask, reply, heard)?;
            tokio::try_join!(a.batch_execute("UNLISTEN *"), b.batch_execute("UNLISTEN *"))?;
            Ok(arrived - start)
        })
    }
}

/// Measures from pg_advisory_unlock until the other connection's pg_advisory_lock returns. The two connections take
/// turns.
struct Advisory {
    holder: Arc<Client>,
    next: Arc<Client>,
    watch: Watch,
}

pub async fn advisory() -> Result<Box<dyn Baton>> {
    let holder = connect().await?;
    holder.execute(LOCK, &[]).await?;
    let (next, watch) = (connect().await?, Watch::advisory_lock().await?);
    Ok(Box::new(Advisory { holder: holder.into(), next: next.into(), watch }))
}

const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended('driver/baton', 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended('driver/baton', 0))";

impl Baton for Advisory {
    fn pass(&mut self) -> Round<'_> {
        Box::pin(async {
            let next = self.next.clone();
            let (lock, unlock) = (next.prepare(LOCK).await?, self.holder.prepare(UNLOCK).await?);
            let locked = async move {
                next.execute(&lock, &[]).await?;
                Ok(Instant::now())
            };
            let release = async { ensure(self.holder.query_one(&unlock, &[]).await?.try_get(0)?, "not locked") };
            let time = between(locked, self.watch.until_waiting(), release).await?;
            std::mem::swap(&mut self.holder, &mut self.next);
            Ok(time)
        })
    }
}
