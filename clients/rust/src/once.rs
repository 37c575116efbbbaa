//! `once`: run-once keys.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::{Leases, log};
use crate::scope::Scope;
use crate::verb::Verb;
use std::{fmt::Display, sync::Arc};
use tokio::sync::{oneshot, watch};

const BEGIN: &str = "SELECT state, fence, result::text FROM eskit_lease.execution_begin($1, $2::uuid)";
const FINISH: &str = "SELECT eskit_lease.execution_finish($1, $2::bigint, $3::jsonb)";
const FAIL: &str = "SELECT eskit_lease.execution_fail($2, $3::bigint, $1, $4::boolean)";

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

/// Tells the scope of the function, or what became of the key.
type Begun = oneshot::Sender<Result<Arc<Scope>, Once>>;
/// Has the result, or the error and whether the key is free again.
type Ended = watch::Receiver<Result<String, (String, bool)>>;

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
        let dropped = |retry| Err(("the call was dropped".to_owned(), retry));
        let ((tell, told), (end, ended)) = (oneshot::channel(), watch::channel(dropped(true)));
        let (turn, its) = (Box::pin(self.turn("once", key).lock_owned()), key.to_owned());
        let running = Verb::new(self).start(turn, |verb| Box::pin(attempt(verb, its, tell, ended)));
        let scope = match told.await {
            Ok(Ok(scope)) => scope,
            Ok(Err(once)) => return Ok(once),
            Err(_) => return Err(running.await.err().unwrap_or(Error::Closed)),
        };
        let call = async {
            let _ = end.send_replace(dropped(false)); // it is not known how far it came
            function(scope.fence()).await
        };
        let done = scope.unless_over(call).await?.map(|result| result.to_string()).map_err(Error::from);
        let failed = |error: &Error| (with_causes(error), !matches!(error, Error::Lost(_) | Error::Unsure(_)));
        let _ = end.send_replace(done.as_ref().map(String::clone).map_err(failed));
        drop(end);
        running.await?;
        Ok(Once { first: true, state: "done".into(), result: Some(done?) })
    }
}

/// Begins an attempt, tells of it, and ends it as it is told last: a caller that is gone has dropped its function.
async fn attempt(mut verb: Verb, key: String, tell: Begun, mut ended: Ended) -> Result<(), Error> {
    let leases = verb.leases.clone();
    let (at, mut rows) = verb.call(BEGIN, &key).await?;
    let row = rows.pop().ok_or_else(Error::lost)?;
    let Some(fence) = row.try_get(1)? else {
        let _ = tell.send(Err(Once { first: false, state: row.try_get(0)?, result: row.try_get(2)? }));
        return Ok(());
    };
    if leases.kept().used.contains(&fence) {
        let is_told = leases.fail(&at.session, FAIL, "its end was refused", &[&key, &fence, &false]).await;
        let state = if is_told { "failed" } else { "running" }.to_owned();
        let _ = tell.send(Err(Once { first: false, state, result: None }));
        return Ok(());
    }
    let _ = tell.send(Ok(Scope::new(&verb.leases, &key, &at, fence)));
    while ended.changed().await.is_ok() {}
    let ended = ended.borrow().clone();
    let (error, retry, done) = match ended {
        Ok(result) => match leases.call(&at.session, FINISH, &[&key, &fence, &result]).await {
            // A key that stays running would have the same fence again, for another run of the function.
            Err(error) if error.of_server().is_some_and(|code| code != "LF003") => {
                (with_causes(&error), false, Err(error))
            }
            done => return done.map(drop),
        },
        Err((error, retry)) => (error, retry, Ok(())),
    };
    log!(warn, "eskit_lease: {key} has failed: {error}");
    if !leases.fail(&at.session, FAIL, &error, &[&key, &fence, &retry]).await {
        leases.kept().used.insert(fence);
    }
    done
}
