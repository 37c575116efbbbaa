//! One connection of the keeper. It closes when it is dropped, also while a call is under way.

use crate::error::{BoxError, Error};
use std::{fmt::Display, pin::Pin, sync::Arc, time::Duration};
use tokio_postgres::{Client, GenericClient, Row, types::ToSql, types::Type};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Makes a client, and the future that drives it. What was sent for longer than the duration is given up.
pub(crate) type Connect = Box<dyn Fn(Duration) -> BoxFuture<Result<(Client, BoxFuture<()>), BoxError>> + Send + Sync>;
/// An argument of a call, which is sent as text.
pub(crate) type Arg<'a> = &'a (dyn Display + Sync);

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

    pub async fn query(&self, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
        query(&*self.client, sql, args).await
    }
}

/// Makes a call by a statement without a name, which a pooler might not know.
pub(crate) async fn query(on: &impl GenericClient, sql: &str, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
    let texts: Vec<_> = args.iter().map(ToString::to_string).collect();
    let typed: Vec<_> = texts.iter().map(|text| (text as &(dyn ToSql + Sync), Type::TEXT)).collect();
    Ok(on.query_typed(sql, &typed).await?)
}
