//! What work is done under: a fence, for as long as the lease is held and trusted.

use crate::keeper::{Leases, Trusted};
use crate::line::Arg;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{sync::Arc, time::Instant};
use tokio_util::sync::CancellationToken;

/// The time of one fence. It begins with a grant; after it has ended, it never begins again.
pub struct Scope {
    pub(crate) leases: Leases,
    pub(crate) over: CancellationToken,  // its time has ended
    pub(crate) token: CancellationToken, // its work is told to end
    name: String,
    fence: i64,
    session: String,
    seen: AtomicU64, // the last ask that `news` has told
}

impl Scope {
    pub(crate) fn new(leases: &Leases, name: &str, at: &Trusted, fence: i64) -> Arc<Self> {
        let (over, seen) = (at.scopes.child_token(), AtomicU64::new(*leases.keeper.asks.borrow()));
        let (token, session) = (over.child_token(), at.session.clone());
        Arc::new(Scope { leases: leases.clone(), over, token, name: name.to_owned(), fence, session, seen })
    }

    /// The name of the lease, or of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// The handle of the session: keep it private.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// A token that is cancelled when the work must end: at once if the scope is no longer trusted; otherwise, if the
    /// keeper drains or the partition moves, the work may finish what it has begun, in further transactions.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Waits for [`token`](Scope::token).
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Tells whether the lease is held and trusted.
    pub fn is_trusted(&self) -> bool {
        self.leases.look_at_clock();
        !self.over.is_cancelled()
    }

    /// When the trust ends, unless the server is heard again before.
    pub fn trusted_until(&self) -> Instant {
        self.leases.trusted_until()
    }

    /// Waits for news: an event in the table that the keeper watches, or a change of what the session holds. Returns at
    /// once if there was news since the scope began, or since this returned last. Also returns when the work must end.
    pub async fn news(&self) {
        let mut asks = self.leases.keeper.asks.subscribe();
        let seen = self.seen.load(Relaxed);
        self.token.run_until_cancelled(asks.wait_for(|asks| *asks > seen)).await;
        self.seen.store(*asks.borrow(), Relaxed);
    }

    /// Ends the scope, whose work has ended, and gives its fence back. Returns whether the server still had it.
    pub(crate) async fn give_back(&self, sql: &str, args: &[Arg<'_>]) -> bool {
        self.over.cancel();
        let done = self.leases.give_back(&self.session, sql, args).await;
        if done.is_err() {
            self.leases.kept().used.insert(self.fence);
        }
        done.is_ok_and(|rows| rows.iter().any(|row| row.try_get(0).unwrap_or(false)))
    }

    /// Ends the scope after a commit whose end is unknown, so that the next one begins under a new fence.
    pub fn unsure(&self) {
        self.over.cancel();
    }
}
