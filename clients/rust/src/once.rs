//! `once`: run-once keys.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::{Keeper, log};
use crate::leases::Leases;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
    /// displays as JSON (`serde_json::Value` does). If it fails, the key is free again. The key stays failed or in doubt
    /// until `execution_resolve` if it is not known how far the function came, as its future was dropped, or it failed
    /// with [`Error::Lost`] or [`Error::Unsure`]; and if its result is none that the server stores.
    pub async fn once<R, F>(&self, key: &str, function: F) -> Result<Once, Error>
    where
        R: Display,
        F: AsyncFnOnce(i64) -> Result<R, BoxError>,
    {
        let ((tell, told), (finish, finished)) = (oneshot::channel(), oneshot::channel());
        let begun = Arc::new(AtomicBool::new(false));
        let has_begun = begun.clone();
        let running = self.start(|end| attempt(self.keeper.clone(), key.to_owned(), end, tell, finished, has_begun));
        let (fence, over) = match told.await {
            Ok(Ok(first)) => first,
            Ok(Err(once)) => return Ok(once),
            Err(_) => return Err(running.await.err().unwrap_or(Error::Closed)),
        };
        let call = async {
            begun.store(true, Relaxed);
            function(fence).await
        };
        let done = over.run_until_cancelled(call).await.ok_or_else(|| Error::lost().of(key, fence))?;
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
    has_begun: Arc<AtomicBool>,
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
    let _ = tell.send(Ok((fence, scopes.child_token())));
    let fence = fence.to_string();
    let (done, error, retry) = match finished.await {
        Ok(Ok(result)) => {
            let finish = "SELECT eskit_lease.execution_finish($1, $2::bigint, $3::jsonb)";
            match keeper.call(&session, finish, &[&key, &fence, &result]).await {
                // A key that stays running would have the same fence again, for another run of the function.
                Err(error) if error.of_server().is_some_and(|code| code != "LF003") => {
                    let why = with_causes(&error);
                    (Err(error), why, false)
                }
                done => return done.map(drop),
            }
        }
        Ok(Err((error, retry))) => (Ok(()), error, retry),
        Err(_) => (Ok(()), "the call was dropped".into(), !has_begun.load(Relaxed)),
    };
    log!(warn, "eskit_lease: {key} has failed: {error}");
    let fail = "SELECT eskit_lease.execution_fail($2, $3::bigint, $1, $4::boolean)";
    keeper.fail(&session, fail, &error, &[&key, &fence, &retry.to_string()]).await;
    done
}
