//! Connections to PostgreSQL, and names for what clients hold.

use std::future::poll_fn;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use uuid::Uuid;

use crate::measure::Result;

pub async fn connect() -> Result<Client> {
    Ok(listener().await?.0)
}

/// Opens a connection, with a channel that tells when a notification arrives.
pub async fn listener() -> Result<(Client, UnboundedReceiver<()>)> {
    to("PGHOST").await
}

/// Opens a connection to the host that an environment variable names.
pub async fn to(host: &str) -> Result<(Client, UnboundedReceiver<()>)> {
    let of = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let mut config = Config::new();
    config.host(of(host, "127.0.0.1")).port(of("PGPORT", "5432").parse()?).user(of("PGUSER", "postgres"));
    config.password(of("PGPASSWORD", ""));
    let (client, mut connection) = config.dbname("postgres").application_name("driver").connect(NoTls).await?;
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(_) = message {
                // The receiver is gone when the measurement is over.
                let _ = sender.send(());
            }
        }
    });
    Ok((client, receiver))
}

/// Names that no client has used before.
pub struct Names {
    prefix: String,
    last: u64,
}

impl Names {
    pub fn of(n: usize) -> Self {
        Self { prefix: format!("driver/{}/{n}/", Uuid::from_u128(stamp())), last: 0 }
    }

    pub fn next(&mut self) -> String {
        self.last += 1;
        format!("{}{}", self.prefix, self.last)
    }
}

fn stamp() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() << 32 | u128::from(std::process::id())
}
