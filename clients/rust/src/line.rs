//! One connection of the keeper. It closes when it is dropped, also while a call is under way.

use crate::error::BoxError;
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Makes a client, and the future that drives it. What was sent for longer than the duration is given up.
pub(crate) type Connect = Box<dyn Fn(Duration) -> BoxFuture<Result<(Client, BoxFuture<()>), BoxError>> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Line {
    client: Arc<Client>,
    _open: Arc<DropGuard>,
}

impl Line {
    pub fn new(client: Client, mut driver: BoxFuture<()>) -> Self {
        let closing = CancellationToken::new();
        let line = Line { client: Arc::new(client), _open: Arc::new(closing.clone().drop_guard()) };
        tokio::spawn(async move {
            if closing.run_until_cancelled(&mut driver).await.is_none() {
                let _ = tokio::time::timeout(Duration::from_millis(100), driver).await; // it takes leave, if it can
            }
        });
        line
    }

    pub fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    pub async fn query(&self, sql: &str, args: &[&str]) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.query_typed(sql, &texts(args)).await
    }
}

/// Arguments that are all text, for a statement without a name, which a pooler might not know.
pub(crate) fn texts<'a>(args: &'a [&str]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    args.iter().map(|arg| (arg as &(dyn ToSql + Sync), Type::TEXT)).collect()
}
