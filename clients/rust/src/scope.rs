//! What work is done under: a fence, for as long as the lease is held and trusted.

use crate::leases::Leases;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a session was granted.
#[derive(Clone)]
pub(crate) struct Grant {
    pub session: String,
    pub fence: i64,
    pub over: CancellationToken,  // its time has ended
    pub token: CancellationToken, // its work is told to end
}

impl Grant {
    pub fn new(session: &str, fence: i64, scopes: &CancellationToken) -> Self {
        let over = scopes.child_token();
        Grant { session: session.to_owned(), fence, token: over.child_token(), over }
    }
}

/// The time of one fence. It begins with a grant; after it has ended, it never begins again.
pub struct Scope {
    pub(crate) leases: Leases,
    pub(crate) grant: Grant,
    name: String,
    seen: AtomicU64, // the last ask that `news` has told
}

impl Scope {
    pub(crate) fn new(leases: &Leases, name: &str, grant: &Grant) -> Self {
        let seen = AtomicU64::new(*leases.keeper.asks.borrow());
        Scope { leases: leases.clone(), name: name.to_owned(), grant: grant.clone(), seen }
    }

    /// The name of the lease, or of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence.
    pub fn fence(&self) -> i64 {
        self.grant.fence
    }

    /// The handle of the session: keep it private.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// A token that is cancelled when the work must end: at once if the scope is no longer trusted; otherwise, if the
    /// keeper drains or the partition moves, the work may finish what it has begun, in further transactions.
    pub fn token(&self) -> &CancellationToken {
        &self.grant.token
    }

    /// Waits for [`token`](Scope::token).
    pub async fn cancelled(&self) {
        self.grant.token.cancelled().await;
    }

    /// Tells whether the lease is held and trusted.
    pub fn is_trusted(&self) -> bool {
        let keeper = &self.leases.keeper;
        if Instant::now() >= keeper.now().2 {
            keeper.event(|core, now| core.tick(now)); // the keeper's own tick may be late
        }
        !self.grant.over.is_cancelled()
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
        self.grant.token.run_until_cancelled(asks.wait_for(|asks| *asks > seen)).await;
        self.seen.store(*asks.borrow(), Relaxed);
    }

    /// Ends the scope after a commit whose end is unknown, so that the next one begins under a new fence.
    pub fn unsure(&self) {
        self.grant.over.cancel();
    }
}
