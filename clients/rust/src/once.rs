//! `once`: run-once keys.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::Keeper;
use crate::leases::Leases;
use std::{fmt::Display, sync::Arc};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

const BEGIN: &str = "SELECT first, state, fence, result::text FROM eskit_lease.execution_begin($1, $2::uuid)";

/// What became of a run-once key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Once {
    /// Whether this call has run the function.
    pub first: bool,
    /// `done`, `running`, `failed` or `in_doubt`.
    pub state: String,
    /// The result if it is done: JSON.
    pub result: Option<String>,
}

/// The fence, or what became of the key.
type Begun = Result<(i64, CancellationToken), Once>;
/// The result, or the error and whether the key is free again.
type Ended = Result<String, (String, bool)>;

impl Leases {
    /// Runs a function once for a key, in all processes. The function gets the fence, and returns a result that
    /// displays as JSON (`serde_json::Value` does). If it fails, the key is free again. If it is not known how far it
    /// came, as its future was dropped, or it failed with [`Error::Lost`] or [`Error::Unsure`], the key stays failed or
    /// in doubt until `execution_resolve`.
    pub async fn once<R, F>(&self, key: &str, function: F) -> Result<Once, Error>
    where
        R: Display,
        F: AsyncFnOnce(i64) -> Result<R, BoxError>,
    {
        let ((tell, told), (finish, finished)) = (oneshot::channel(), oneshot::channel());
        let running = self.start(|end| attempt(self.keeper.clone(), key.to_owned(), end, tell, finished));
        let (fence, over) = match told.await {
            Ok(Ok(begun)) => begun,
            Ok(Err(once)) => return Ok(once),
            Err(_) => return Err(running.await.err().unwrap_or(Error::Closed)),
        };
        let done = over.run_until_cancelled(function(fence)).await.ok_or_else(|| Error::lost().of(key, fence))?;
        let done = done.map(|result| result.to_string()).map_err(Error::from);
        let _ = finish.send(match &done {
            Ok(result) => Ok(result.clone()),
            // Without its end it is not known how far it came.
            Err(error) => Err((with_causes(error), !matches!(error, Error::Lost(_) | Error::Unsure(_)))),
        });
        let finished = running.await;
        let result = Some(done?);
        finished.map(|()| Once { first: true, state: "done".into(), result })
    }
}

/// Begins an attempt, tells of it, and ends it as it is told. A caller that is gone has dropped its function.
async fn attempt(
    keeper: Arc<Keeper>,
    key: String,
    end: CancellationToken,
    tell: oneshot::Sender<Begun>,
    finished: oneshot::Receiver<Ended>,
) -> Result<(), Error> {
    let _turn = keeper.until(&end, keeper.turn("once", &key).lock_owned()).await?;
    let (session, scopes, row) = loop {
        let (session, scopes) = keeper.trusted(&end).await?;
        match keeper.call(&session, BEGIN, &[&key, &session]).await {
            Err(Error::Lost(_)) => (),
            rows => break (session, scopes, rows?.pop().ok_or_else(Error::lost)?),
        }
    };
    let Some(fence) = row.try_get::<_, Option<i64>>(2)? else {
        let _ = tell.send(Err(Once { first: false, state: row.try_get(1)?, result: row.try_get(3)? }));
        return Ok(());
    };
    let was_told = tell.send(Ok((fence, scopes.child_token()))).is_ok();
    let fence = fence.to_string();
    let (error, retry) = match finished.await {
        Ok(Ok(result)) => {
            let finish = "SELECT eskit_lease.execution_finish($1, $2::bigint, $3::jsonb)";
            return keeper.call(&session, finish, &[&key, &fence, &result]).await.map(drop);
        }
        Ok(Err(error)) => error,
        Err(_) => ("the call was dropped".to_owned(), !was_told),
    };
    let fail = "SELECT eskit_lease.execution_fail($1, $2::bigint, $3, $4::boolean)";
    keeper.call(&session, fail, &[&key, &fence, &error, &retry.to_string()]).await.map(drop)
}
