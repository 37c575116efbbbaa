//! `lead`: one leader at a time.

use crate::error::{Error, State};
use crate::keeper::Leases;
use crate::scope::Scope;
use crate::verb::{Running, Turn, Verb};
use std::{future::ready, ops::Deref};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

// A refusal tells nothing of the session, unless that has ended.
const ACQUIRE: &str = "SELECT fence, trust_ms, revision, reason, \
                       CASE WHEN reason IN ('expired', 'unknown_session') THEN false \
                            WHEN fence IS NOT NULL THEN true END AS alive \
                       FROM eskit_lease.lease_acquire($1, $2::uuid, $3::boolean)";
const RELEASE: &str = "SELECT eskit_lease.lease_release($1, $2::bigint)";
const CANCEL: &str = "SELECT eskit_lease.lease_cancel($1, $2::uuid)";
const RELEASE_ANY: &str = "SELECT eskit_lease.lease_release_many(ARRAY[$1], $2::uuid)";

/// Leadership: a [`Scope`] that ends when this is released, or dropped.
#[must_use = "the lease is released when this is dropped"]
pub struct Lead {
    scope: Scope,
    held: DropGuard,
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
        drop(self.held);
        let _ = self.running.await;
    }
}

impl Leases {
    /// Waits for leadership. To stop waiting, drop the future: it gives its place in line up.
    pub async fn lead(&self, name: &str) -> Result<Lead, Error> {
        let turn = self.turn("lead", name).lock_owned();
        self.ask_for(name, true, Box::pin(turn)).await?.ok_or(Error::Closed)
    }

    /// Returns leadership if it is free, or else None, at once.
    pub async fn try_lead(&self, name: &str) -> Result<Option<Lead>, Error> {
        match (self.state(), self.turn("lead", name).try_lock_owned()) {
            (State::Trusted, Ok(turn)) => self.ask_for(name, false, Box::pin(ready(turn))).await,
            (State::Draining | State::Closed, _) => Err(Error::Closed),
            _ => Ok(None),
        }
    }

    async fn ask_for(&self, name: &str, queue: bool, turn: Turn) -> Result<Option<Lead>, Error> {
        let ((tell, told), name) = (oneshot::channel(), name.to_owned());
        let running = Verb::start(self, turn, move |verb| Hold { verb, name, place: None }.run(queue, tell));
        match told.await {
            Ok((scope, held)) => Ok(Some(Lead { scope, held, running })),
            Err(_) => running.await.map(|()| None),
        }
    }
}

/// A name, from the first ask for it until it is given up.
struct Hold {
    verb: Verb,
    name: String,
    place: Option<String>, // the session that may have a place in line, or the lease without a scope
}

impl Hold {
    async fn run(mut self, queue: bool, tell: oneshot::Sender<(Scope, DropGuard)>) -> Result<(), Error> {
        let granted = self.wait(queue).await;
        let leases = self.verb.leases.clone();
        if let Ok(Some(scope)) = &granted {
            let (held, token, end) = (CancellationToken::new(), scope.token.clone(), self.verb.end.clone());
            let _ = tell.send((scope.clone(), held.clone().drop_guard()));
            tokio::spawn(async move { token.run_until_cancelled(end.cancelled()).await.map(|()| token.cancel()) });
            let stays = self.keep(scope, &held).await;
            scope.over.cancel();
            if stays {
                let _ = leases.give_back(scope.session(), RELEASE, &[&self.name, &scope.fence()]).await;
                self.place = None;
            }
        }
        if let Some(session) = &self.place {
            for sql in [CANCEL, RELEASE_ANY] {
                let _ = leases.give_back(session, sql, &[&self.name, session]).await; // also a grant that crossed the cancel
            }
        }
        granted.map(drop)
    }

    /// Asks until the lease is granted. None if it is not, without a queue.
    async fn wait(&mut self, queue: bool) -> Result<Option<Scope>, Error> {
        loop {
            let at = self.verb.next().await?;
            self.place = Some(at.session.clone());
            match self.acquire(&at.session, queue).await {
                Ok((Some(fence), _)) if !at.scopes.is_cancelled() => {
                    return Ok(Some(Scope::new(&self.verb.leases, &self.name, &at, fence)));
                }
                Ok((fence, _)) if !queue => {
                    self.place = self.place.take().filter(|_| fence.is_some());
                    return Ok(None);
                }
                // The session is told of a grant to its place in line. It has none after other refusals, which pass.
                Ok((_, reason)) if reason == "queued" => (),
                Ok(_) => self.verb.retry(),
                Err(error) => self.verb.passes(error)?,
            }
        }
    }

    /// Asks again at each ask, until the scope is given back. Tells whether the lease has stayed as it was.
    async fn keep(&mut self, scope: &Scope, held: &CancellationToken) -> bool {
        let mut stays = true;
        loop {
            tokio::select! {
                () = held.cancelled() => return stays,
                () = self.verb.asked(), if !scope.over.is_cancelled() => {
                    match self.acquire(scope.session(), false).await {
                        Ok((fence, reason)) if fence == Some(scope.fence()) && reason == "already_held" => continue,
                        Err(Error::Lost(_)) => (),
                        _ => stays = false,
                    }
                    scope.over.cancel();
                }
            }
        }
    }

    /// Asks for the lease: returns its fence, if it is granted, and the reason.
    async fn acquire(&self, session: &str, queue: bool) -> Result<(Option<i64>, String), Error> {
        let rows = self.verb.leases.call(session, ACQUIRE, &[&self.name, &session, &queue]).await?;
        let row = rows.first().ok_or_else(Error::lost)?;
        Ok((row.try_get("fence")?, row.try_get("reason")?))
    }
}
