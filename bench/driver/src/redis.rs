//! Redis. A name is a key with a time to live, and its value names the holder. Operations that require one's own value
//! are scripts.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, cmd};

use crate::connection::Names;
use crate::measure::{Result, ensure};
use crate::worker::{Operation, Step, Worker};

const TTL_MS: u32 = 3_600_000;
const RENEW: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const REACQUIRE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
                         elseif redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end";

struct Redis {
    connection: MultiplexedConnection,
    operation: Operation,
    script: String,
    names: Names,
    held: String,
    owner: String,
}

pub async fn open(operation: Operation, address: &str, n: usize) -> Result<Box<dyn Worker>> {
    let info = format!("redis://{address}").into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp))?;
    // A turn has its own limit. A timer for each call would be a cost that the other systems do not have.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let script = match operation {
        Operation::Heartbeat => RENEW,
        Operation::AcquireRelease => RELEASE,
        Operation::Reacquire => REACQUIRE,
    };
    let script = cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await?;
    let mut names = Names::of(n);
    let mut worker = Redis { held: names.next(), connection, operation, script, names, owner: format!("driver-{n}") };
    worker.set(&worker.held.clone()).await?;
    Ok(Box::new(worker))
}

impl Redis {
    async fn set(&mut self, name: &str) -> Result<()> {
        let mut set = cmd("SET");
        set.arg(name).arg(&self.owner).arg("NX").arg("PX").arg(TTL_MS);
        let answer: Option<String> = set.query_async(&mut self.connection).await?;
        ensure(answer.is_some(), "held")
    }

    async fn call(&mut self, script: &Cmd) -> Result<()> {
        let answer: i64 = script.query_async(&mut self.connection).await?;
        ensure(answer == 1, "not the holder")
    }

    fn script(&self, name: &str) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&self.script).arg(1).arg(name).arg(&self.owner);
        call
    }
}

impl Worker for Redis {
    fn step(&mut self) -> Step<'_> {
        Box::pin(async {
            if self.operation == Operation::AcquireRelease {
                let name = self.names.next();
                self.set(&name).await?;
                let release = self.script(&name);
                self.call(&release).await
            } else {
                let mut renew = self.script(&self.held);
                renew.arg(TTL_MS);
                self.call(&renew).await
            }
        })
    }
}
