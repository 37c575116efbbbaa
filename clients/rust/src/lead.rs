//! `lead`: one leader at a time.

use crate::error::{Error, State};
use crate::keeper::{Leases, Trusted};
use crate::scope::Scope;
use crate::verb::{Look, RETRY, Running, Turn, Verb};
use std::{future::ready, ops::Deref, sync::Arc, time::Duration};
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
    scope: Arc<Scope>,
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
        match (self.state(), self.trusted(), self.turn("lead", name).try_lock_owned()) {
            (State::Draining | State::Closed, ..) => Err(Error::Closed),
            (_, Some(at), Ok(turn)) => {
                let asked = self.ask_for(name, false, Box::pin(ready(turn)));
                at.scopes.run_until_cancelled(asked).await.unwrap_or(Ok(None))
            }
            _ => Ok(None),
        }
    }

    async fn ask_for(&self, name: &str, queue: bool, turn: Turn) -> Result<Option<Lead>, Error> {
        let (tell, told) = oneshot::channel();
        let hold = Hold { name: name.to_owned(), tell: Some(tell), scope: None, place: None };
        let verb = Verb { waits: queue, ..Verb::new(self) };
        let mut running = verb.start(turn, |verb| Box::pin(verb.follow(hold)));
        let Ok((scope, end)) = told.await else {
            return running.await.map(|()| None);
        };
        running.end = Some(end);
        Ok(Some(Lead { scope, running }))
    }
}

/// A name, from the first ask for it until it is given back.
struct Hold {
    name: String,
    tell: Option<oneshot::Sender<(Arc<Scope>, DropGuard)>>,
    scope: Option<Arc<Scope>>,
    place: Option<String>, // the session that may have a place in line, or the lease under a fence without a scope
}

impl Hold {
    /// Asks for the lease: returns its fence, if it is granted, and the reason.
    async fn acquire(&self, leases: &Leases, session: &str, queue: bool) -> Result<(Option<i64>, String), Error> {
        let rows = leases.call(session, ACQUIRE, &[&self.name, &session, &queue]).await?;
        let row = rows.first().ok_or_else(Error::lost)?;
        Ok((row.try_get("fence")?, row.try_get("reason")?))
    }

    /// Begins the scope, which ends with the caller's [`Lead`]. A drain only tells it.
    fn begin(&mut self, verb: &mut Verb, scope: Arc<Scope>) {
        let (token, stop, end) = (scope.token.clone(), verb.leases.keeper.stop.clone(), CancellationToken::new());
        tokio::spawn(async move { token.run_until_cancelled(stop.cancelled()).await.map(|()| token.cancel()) });
        verb.end = end.clone();
        (self.scope, self.place) = (Some(scope.clone()), None);
        self.tell.take().map(|tell| tell.send((scope, end.drop_guard())));
    }
}

impl Look for Hold {
    async fn look(&mut self, verb: &mut Verb, at: &Trusted) -> Result<(), Error> {
        if let Some(scope) = &self.scope {
            let is_held = |(fence, reason)| fence == Some(scope.fence()) && reason == "already_held";
            if !scope.over.is_cancelled()
                && !self.acquire(&verb.leases, scope.session(), false).await.is_ok_and(is_held)
            {
                scope.over.cancel();
            }
            return Ok(());
        }
        self.place = Some(at.session.clone());
        match self.acquire(&verb.leases, &at.session, verb.waits).await? {
            (Some(fence), _) if verb.leases.kept().used.contains(&fence) => {
                verb.leases.give_back(&at.session, RELEASE_ANY, &[&self.name, &at.session]).await?;
                verb.patience = Duration::ZERO; // asks again, for another fence
            }
            (Some(fence), _) if !at.scopes.is_cancelled() => {
                self.begin(verb, Scope::new(&verb.leases, &self.name, at, fence));
            }
            (fence, _) if !verb.waits => {
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
        let mut place = self.place.as_deref();
        if let Some(scope) = &self.scope {
            let is_released = scope.give_back(RELEASE, &[&self.name, &scope.fence()]).await;
            // Else the server refused that, or the session has the name under another fence.
            place = (!is_released).then_some(scope.session());
        }
        if let Some(session) = place {
            let _ = leases.give_back(session, CANCEL, &[&self.name, &session]).await;
            // Also a grant that crossed the cancel.
            let _ = leases.give_back(session, RELEASE_ANY, &[&self.name, &session]).await;
        }
    }
}
