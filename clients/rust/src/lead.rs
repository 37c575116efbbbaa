//! `lead`: one leader at a time.

use crate::error::{Error, State};
use crate::keeper::{Keeper, answer_of};
use crate::leases::{Leases, Running};
use crate::scope::{Grant, Scope};
use std::{future::pending, ops::Deref, sync::Arc, time::Duration};
use tokio::sync::{OwnedMutexGuard, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const ACQUIRE: &str = "SELECT fence, trust_ms, revision, reason, reason NOT IN ('expired', 'unknown_session') AS alive \
                       FROM eskit_lease.lease_acquire($1, $2::uuid, $3::boolean)";

const RETRY: Duration = Duration::from_secs(1);

/// Leadership: a [`Scope`] that ends when this is released, or dropped.
#[must_use = "the lease is released when this is dropped"]
pub struct Lead {
    scope: Scope,
    running: Running,
}

impl Deref for Lead {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.scope
    }
}

impl Lead {
    /// Ends the scope, and waits until the lease is released, or the session has ended.
    pub async fn release(self) {
        let _ = self.running.stop().await;
    }
}

impl Leases {
    /// Waits for leadership. To stop waiting, drop the future: it gives its place in line up.
    pub async fn lead(&self, name: &str) -> Result<Lead, Error> {
        let turn = self.keeper.turn("lead", name).lock_owned();
        let turn = self.keeper.until(&self.keeper.stop, turn).await?;
        self.ask_for(name, true, turn).await?.ok_or(Error::Closed)
    }

    /// Returns leadership if it is free, or else None, at once.
    pub async fn try_lead(&self, name: &str) -> Result<Option<Lead>, Error> {
        match (self.state(), self.keeper.turn("lead", name).try_lock_owned()) {
            (State::Trusted, Ok(turn)) => self.ask_for(name, false, turn).await,
            (State::Draining | State::Closed, _) => Err(Error::Closed),
            _ => Ok(None),
        }
    }

    async fn ask_for(&self, name: &str, queue: bool, turn: OwnedMutexGuard<()>) -> Result<Option<Lead>, Error> {
        let (tell, told) = oneshot::channel();
        let (keeper, asks) = (self.keeper.clone(), self.keeper.asks.subscribe());
        let hold = |end| Hold { keeper, name: name.to_owned(), end, asks, session: None, _turn: turn };
        let running = self.start(|end| hold(end).run(queue, tell));
        match told.await {
            Ok(grant) => Ok(Some(Lead { scope: Scope::new(self, name, &grant), running })),
            Err(_) => running.await.map(|()| None),
        }
    }
}

/// A name, from the first ask for it until it is given up.
struct Hold {
    keeper: Arc<Keeper>,
    name: String,
    end: CancellationToken,
    asks: watch::Receiver<u64>, // seen before the last call
    session: Option<String>,    // that may have the lease, or a place in line
    _turn: OwnedMutexGuard<()>,
}

impl Hold {
    async fn run(mut self, queue: bool, tell: oneshot::Sender<Grant>) -> Result<(), Error> {
        let granted = self.wait(queue).await;
        let mut fence = None;
        if let Ok(Some(grant)) = &granted {
            let _ = tell.send(grant.clone());
            let stop = self.keeper.stop.clone();
            let tell_of_drain = async {
                stop.cancelled().await;
                grant.token.cancel();
                pending().await
            };
            let stays = tokio::select! {
                stays = self.keep(grant) => stays,
                stays = tell_of_drain => stays,
            };
            fence = stays.then(|| grant.fence.to_string());
            grant.over.cancel();
        }
        if let Some(session) = &self.session {
            self.give_up(session, fence).await;
        }
        granted.map(drop)
    }

    /// Asks until the lease is granted. None if it is not, without a queue.
    async fn wait(&mut self, queue: bool) -> Result<Option<Grant>, Error> {
        loop {
            let (session, scopes) = self.keeper.trusted(&self.end).await?;
            self.asks.borrow_and_update();
            self.session = Some(session.clone());
            let reason = match self.acquire(&session, queue).await {
                Ok((Some(fence), _)) if !scopes.is_cancelled() => {
                    return Ok(Some(Grant::new(&session, fence, &scopes)));
                }
                Ok((None, _)) if !queue => {
                    self.session = None;
                    return Ok(None);
                }
                Ok((_, reason)) => reason,
                Err(Error::Lost(_)) => continue,
                Err(error) => return Err(error),
            };
            // The session is told of a grant to its place in line. It has none after other refusals, which pass.
            let patience = if reason == "queued" { Duration::MAX } else { RETRY };
            let _ = self.keeper.until(&self.end, timeout(patience, self.asks.changed())).await?;
        }
    }

    /// Asks again at each change, until the scope is given back. Tells whether the lease has stayed as it was.
    async fn keep(&mut self, grant: &Grant) -> bool {
        let mut stays = true;
        loop {
            tokio::select! {
                () = self.end.cancelled() => return stays,
                _ = self.asks.changed(), if !grant.over.is_cancelled() => {
                    match self.acquire(&grant.session, false).await {
                        Ok((fence, reason)) if fence == Some(grant.fence) && reason == "already_held" => continue,
                        Err(Error::Lost(_)) => (),
                        _ => stays = false,
                    }
                    grant.over.cancel();
                }
            }
        }
    }

    /// Asks for the lease: returns its fence, if it is granted, and the reason.
    async fn acquire(&self, session: &str, queue: bool) -> Result<(Option<i64>, String), Error> {
        let sent = self.keeper.began.elapsed();
        let rows = self.keeper.call(session, ACQUIRE, &[&self.name, session, &queue.to_string()]).await?;
        let answer = answer_of(rows.first())?;
        let fence = rows.first().and_then(|row| row.try_get("fence").ok());
        if fence.is_some() || !answer.alive {
            self.keeper.heard(session, sent, &answer); // a refusal tells no trust
        }
        if answer.alive { Ok((fence, answer.reason)) } else { Err(Error::lost()) }
    }

    /// Releases the lease under its fence; without one, gives up whatever the session may have of it.
    async fn give_up(&self, session: &str, fence: Option<String>) {
        let args = [&*self.name, fence.as_deref().unwrap_or(session)];
        let statements: &[&str] = match fence {
            Some(_) => &["SELECT eskit_lease.lease_release($1, $2::bigint)"],
            None => &[
                "SELECT eskit_lease.lease_cancel($1, $2::uuid)",
                "SELECT eskit_lease.lease_release_many(ARRAY[$1], $2::uuid)",
            ],
        };
        for sql in statements {
            let _ = self.keeper.give_back(session, sql, &args).await;
        }
    }
}
