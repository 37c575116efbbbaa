//! Transactions of sqlx under a fence, with the feature `sqlx`.
//!
//! A [`Lead`](crate::Lead) and a [`Partition`] are scopes, too. Unlike [`Scope::transaction`], nothing here ends your work
//! when the scope ends: watch its [`token`](Scope::token). A connection that is in no transaction does not compile:
//!
//! ```compile_fail,E0308
//! async fn guard(lead: eskit_lease::Lead, mut connection: sqlx::PgConnection) {
//!     eskit_lease::sqlx::guard(&lead, &mut connection).await;
//! }
//! ```

use crate::error::{BoxError, Error, is_of_statement};
use crate::group::{COMMIT, POSITION, Partition};
use crate::scope::Scope;
use crate::transaction::CHECK;
use crate::work::{DONE, Item};
use sqlx::postgres::PgRow;
use sqlx::{Executor, PgTransaction, Row};
use std::sync::atomic::Ordering::Relaxed;

/// Checks the fence. Call it before you read what the writes depend on.
pub async fn guard(scope: &Scope, tx: &mut PgTransaction<'_>) -> Result<(), Error> {
    query(scope, tx, CHECK, &[scope.name(), &scope.fence().to_string()]).await.map(drop)
}

/// Returns the cursor of a partition: all positions up to it are done.
pub async fn position(partition: &Partition, tx: &mut PgTransaction<'_>) -> Result<i64, Error> {
    let row = query(partition, tx, POSITION, &[partition.name(), &partition.number().to_string()]).await?;
    Ok(row.try_get(0)?)
}

/// Moves the cursor of a partition, as [`Partition::commit`] does.
pub async fn commit(
    partition: &Partition,
    tx: &mut PgTransaction<'_>,
    position: i64,
    expected: i64,
) -> Result<bool, Error> {
    let args = [i64::from(partition.number()), position, partition.fence(), expected].map(|number| number.to_string());
    let args = [partition.name(), &args[0], &args[1], &args[2], &args[3]];
    Ok(query(partition, tx, COMMIT, &args).await?.try_get(0)?)
}

/// Commits, and tells how that ended. After [`Error::Unsure`] the scope has ended: the next one has another fence.
pub async fn end(scope: &Scope, mut tx: PgTransaction<'_>) -> Result<(), Error> {
    scope.check()?;
    // If the work has caught an error of the server, COMMIT would roll back and say nothing; but the SELECT fails.
    tx.execute("SELECT").await.map_err(|error| scope.judge(error.into()))?;
    let unsure = scope.over.clone().drop_guard();
    let committed = tx.commit().await;
    let rolled_back = committed.as_ref().is_err_and(|error| code_of(error).is_some_and(|code| is_of_statement(&code)));
    if committed.is_ok() || rolled_back {
        unsure.disarm();
    }
    committed.map_err(|error| scope.judge(if rolled_back { error.into() } else { Error::from(error).unsure() }))
}

/// Finishes an item in the transaction of its work, and commits.
pub async fn finish(item: &Item, mut tx: PgTransaction<'_>) -> Result<(), Error> {
    let args = [item.id, item.scope.fence()].map(|number| number.to_string());
    query(&item.scope, &mut tx, DONE, &[&args[0], &args[1]]).await?;
    end(&item.scope, tx).await?;
    item.done.store(true, Relaxed);
    Ok(())
}

/// Makes a call in a transaction that checks the fence, or relies on it.
async fn query(scope: &Scope, tx: &mut PgTransaction<'_>, sql: &str, args: &[&str]) -> Result<PgRow, Error> {
    scope.check()?;
    let call = args.iter().fold(sqlx::query(sql).persistent(false), |call, arg| call.bind(*arg));
    call.fetch_one(&mut **tx).await.map_err(|error| scope.judge(error.into()))
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = code_of(&error);
        Error::by_code(code.as_deref(), error).unwrap_or_else(|error| Error::Other(BoxError::from(error)))
    }
}
