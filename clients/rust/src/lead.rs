//! `lead`: one leader at a time.

use crate::error::{Error, State};
use crate::keeper::{Leases, Trusted};
use crate::scope::Scope;
use crate::verb::{Look, RETRY, Running, Turn, Verb};
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
        let (tell, told) = oneshot::channel();
        let hold = Hold { name: name.to_owned(), queue, tell: Some(tell), scope: None, place: None };
        let mut running = Verb::new(self).start(turn, |verb| Box::pin(verb.follow(hold)));
        match told.await {
            Ok((scope, end)) => {
                running.end = Some(end);
                Ok(Some(Lead { scope, running }))
            }
            Err(_) => running.await.map(|()| None),
        }
    }
}

/// A name, from the first ask for it until it is given back.
struct Hold {
    name: String,
    queue: bool,
    tell: Option<oneshot::Sender<(Scope, DropGuard)>>,
    scope: Option<Scope>,
    place: Option<String>, // the session that may have a place in line, or the lease under a fence without a scope
}

impl Hold {
    /// Asks for the lease: returns its fence, if it is granted, and the reason.
    async fn acquire(&self, leases: &Leases, session: &str, queue: bool) -> Result<(Option<i64>, String), Error> {
        let rows = leases.call(session, ACQUIRE, &[&self.name, &session, &queue]).await?;
        let row = rows.first().ok_or_else(Error::lost)?;
        Ok((row.try_get("fence")?, row.try_get("reason")?))
    }

    /// Asks whether the lease is still held.
    async fn keep(&mut self, leases: &Leases, scope: &Scope) {
        match self.acquire(leases, scope.session(), false).await {
            Ok((fence, reason)) if fence == Some(scope.fence()) && reason == "already_held" => return,
            Err(Error::Lost(_)) => (),
            _ => self.place = Some(scope.session().to_owned()), // it may have been granted anew
        }
        scope.over.cancel();
    }

    /// Begins the scope, which ends with the caller's [`Lead`]. A drain only tells it.
    fn begin(&mut self, verb: &mut Verb, scope: Scope) {
        let (token, stop, end) = (scope.token.clone(), verb.leases.keeper.stop.clone(), CancellationToken::new());
        tokio::spawn(async move { token.run_until_cancelled(stop.cancelled()).await.map(|()| token.cancel()) });
        verb.end = end.clone();
        (self.scope, self.place) = (Some(scope.clone()), None);
        self.tell.take().map(|tell| tell.send((scope, end.drop_guard())));
    }
}

impl Look for Hold {
    async fn look(&mut self, verb: &mut Verb, at: &Trusted) -> Result<(), Error> {
        if let Some(scope) = self.scope.clone() {
            if !scope.over.is_cancelled() {
                self.keep(&verb.leases, &scope).await;
            }
            return Ok(());
        }
        self.place = Some(at.session.clone());
        match self.acquire(&verb.leases, &at.session, self.queue).await? {
            (Some(fence), _) if !at.scopes.is_cancelled() => {
                self.begin(verb, Scope::new(&verb.leases, &self.name, at, fence));
            }
            (fence, _) if !self.queue => {
                self.place = self.place.take().filter(|_| fence.is_some());
                return Err(Error::Closed);
            }
            // The session is told of a grant to its place in line. It has none after other refusals, which pass.
            (_, reason) if reason == "queued" => (),
            _ => verb.patience = RETRY,
        }
        Ok(())
    }

    async fn leave(&self, leases: &Leases) {
        if let Some(scope) = &self.scope {
            scope.over.cancel();
            if self.place.is_none() {
                let _ = leases.give_back(scope.session(), RELEASE, &[&self.name, &scope.fence()]).await;
            }
        }
        if let Some(session) = &self.place {
            let _ = leases.give_back(session, CANCEL, &[&self.name, session]).await;
            // Also a grant that crossed the cancel.
            let _ = leases.give_back(session, RELEASE_ANY, &[&self.name, session]).await;
        }
    }
}
