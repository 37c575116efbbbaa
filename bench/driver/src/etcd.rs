//! etcd. A session is a lease with a time to live, and the session holds a name by a key that is attached to that
//! lease. Hand-over is the mutex of etcd's own concurrency package. Each connection is a client of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::sync::{Mutex, oneshot};
use tokio::time::sleep;

use crate::baton::{Baton, Round, between};
use crate::connection::Names;
use crate::measure::{Result, ensure};
use crate::worker::{Operation, Step, Worker};

const TTL: i64 = 3_600;

pub async fn open(operation: Operation, address: &str, n: usize) -> Result<Box<dyn Worker>> {
    let mut client = Client::connect([address], None).await?;
    match operation {
        Operation::Heartbeat => {
            let lease = client.lease_grant(TTL, None).await?.id();
            let (keeper, answers) = client.lease_keep_alive(lease).await?;
            Ok(Box::new(KeepAlive { keeper, answers }))
        }
        Operation::AcquireRelease => Ok(Box::new(Grant { client, names: Names::of(n) })),
        Operation::Reacquire => Err("etcd has no such operation: who holds a key need not ask again".into()),
    }
}

/// One stream, with one message in flight.
struct KeepAlive {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Worker for KeepAlive {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            self.keeper.keep_alive().await?;
            let answer = self.answers.message().await?.ok_or("the stream has ended")?;
            ensure(answer.ttl() > 0, "the lease has expired")
        })
    }
}

/// Grants a lease, puts a key with it if the key is absent, and revokes the lease, which deletes the key.
struct Grant {
    client: Client,
    names: Names,
}

impl Worker for Grant {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            let name = self.names.next();
            let lease = self.client.lease_grant(TTL, None).await?.id();
            let put = TxnOp::put(name.clone(), "", Some(PutOptions::new().with_lease(lease)));
            let absent = Compare::create_revision(name, CompareOp::Equal, 0);
            ensure(self.client.txn(Txn::new().when([absent]).and_then([put])).await?.succeeded(), "held")?;
            self.client.lease_revoke(lease).await?;
            Ok(())
        })
    }
}

/// The concurrency package watches from a past revision. The server checks every 100 ms whether such a watch has caught
/// up, and sends it nothing before that. Most mutexes are held for longer, so the driver waits for the watch to catch
/// up before it measures.
const CATCH_UP: Duration = Duration::from_millis(150);
const PREFIX: &str = "driver/mutex/";

/// A client that locks and unlocks the mutex, in the steps of etcd's concurrency package.
struct Contender {
    client: Client,
    lease: i64,
    key: String,
}

impl Contender {
    async fn open(address: &str) -> Result<Self> {
        let mut client = Client::connect([address], None).await?;
        let lease = client.lease_grant(TTL, None).await?.id();
        Ok(Self { client, lease, key: format!("{PREFIX}{lease:x}") })
    }

    /// Puts the contender's key behind all others. Returns the revision of the key, and whether it is the first.
    async fn enlist(&mut self) -> Result<(i64, bool)> {
        let first = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let txn = Txn::new().when([Compare::create_revision(self.key.clone(), CompareOp::Equal, 0)]).and_then([
            TxnOp::put(self.key.clone(), "", Some(PutOptions::new().with_lease(self.lease))),
            TxnOp::get(PREFIX, Some(first)),
        ]);
        let answer = self.client.txn(txn).await?;
        ensure(answer.succeeded(), "its key is there already")?;
        let revision = answer.header().ok_or("no revision")?.revision();
        let owner = match answer.op_responses().into_iter().nth(1) {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(|key| key.create_revision()),
            _ => None,
        };
        Ok((revision, owner.is_none_or(|owner| owner == revision)))
    }

    /// Waits until all keys before the contender's own are gone, and confirms that its own still exists. Signals
    /// `watching` when it begins to wait.
    async fn wait(&mut self, revision: i64, watching: oneshot::Sender<()>) -> Result<()> {
        let mut watching = Some(watching);
        let before = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
        let before = before.with_max_create_revision(revision - 1);
        loop {
            let found = self.client.get(PREFIX, Some(before.clone())).await?;
            let Some(last) = found.kvs().first() else { break };
            let since = found.header().ok_or("no revision")?.revision();
            let mut events =
                self.client.watch(last.key(), Some(WatchOptions::new().with_start_revision(since))).await?;
            'watch: loop {
                let answer = events.message().await?.ok_or("the watch has ended")?;
                if answer.created() {
                    watching.take().map(|watching| watching.send(()));
                }
                for event in answer.events() {
                    if event.event_type() == EventType::Delete {
                        break 'watch;
                    }
                }
            }
        }
        ensure(!self.client.get(self.key.clone(), None).await?.kvs().is_empty(), "its lease has expired")
    }

    async fn unlock(&mut self) -> Result<()> {
        ensure(self.client.delete(self.key.clone(), None).await?.deleted() == 1, "its key is gone")
    }
}

/// Measures from the deletion of one contender's key until the other knows that it is the first. The two contenders
/// take turns.
struct EtcdMutex {
    holder: Arc<Mutex<Contender>>,
    next: Arc<Mutex<Contender>>,
}

pub async fn baton(address: &str) -> Result<Box<dyn Baton>> {
    let (mut holder, next) = (Contender::open(address).await?, Contender::open(address).await?);
    ensure(holder.enlist().await?.1, "the mutex is locked")?;
    Ok(Box::new(EtcdMutex { holder: Arc::new(Mutex::new(holder)), next: Arc::new(Mutex::new(next)) }))
}

impl Baton for EtcdMutex {
    fn pass(&mut self) -> Round<'_> {
        Box::pin(async {
            let next = self.next.clone();
            let (revision, first) = next.lock().await.enlist().await?;
            ensure(!first, "the mutex is free")?;
            let (watching, waits) = oneshot::channel();
            let locked = async move {
                next.lock().await.wait(revision, watching).await?;
                Ok(Instant::now())
            };
            let waits = async {
                waits.await.map_err(|_| "it does not wait")?;
                sleep(CATCH_UP).await;
                Ok(())
            };
            let release = async { self.holder.lock().await.unlock().await };
            let time = between(locked, waits, release).await?;
            std::mem::swap(&mut self.holder, &mut self.next);
            Ok(time)
        })
    }
}
