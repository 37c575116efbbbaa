//! `join`: the partitions of a consumer group.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::{Leases, Trusted, log};
use crate::line::{Arg, BoxFuture};
use crate::scope::Scope;
use crate::verb::{Look, RETRY, Running, Verb};
use std::collections::HashMap;
use std::sync::{Arc, atomic::AtomicU32, atomic::Ordering::Relaxed};
use std::{ops::Deref, time::Duration};
use tokio::time::sleep;
use tokio_postgres::Transaction;

const JOIN: &str = "SELECT eskit_lease.group_join($1, $2::uuid)";
const ASSIGNMENT: &str = "SELECT partition::bigint, fence, state = 'owned' \
                          FROM eskit_lease.group_assignment($1, $2::uuid)";
const RELEASE: &str = "SELECT eskit_lease.group_release($1, $2::int, $3::bigint)";
const LEAVE: &str = "SELECT eskit_lease.group_leave($1, $2::uuid)";
pub(crate) const POSITION: &str = "SELECT eskit_lease.cursor_position($1, $2::int)";
pub(crate) const COMMIT: &str = "SELECT eskit_lease.cursor_commit($1, $2::int, $3::bigint, $4::bigint, $5::bigint)";

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A partition that this process owns: a [`Scope`] with a cursor.
pub struct Partition {
    scope: Arc<Scope>,
    number: i32,
}

impl Deref for Partition {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.scope
    }
}

impl Partition {
    /// The partition's number, from 0.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Returns the cursor: all positions up to it are done.
    pub async fn position(&self, tx: &Transaction<'_>) -> Result<i64, Error> {
        Ok(self.query(tx, POSITION, &[&self.name(), &self.number]).await?.try_get(0)?)
    }

    /// Moves the cursor from `expected` to `position`, and checks the fence. False if the cursor was at `position` or
    /// beyond: apply nothing then.
    pub async fn commit(&self, tx: &Transaction<'_>, position: i64, expected: i64) -> Result<bool, Error> {
        let args: [Arg<'_>; 5] = [&self.name(), &self.number, &position, &self.fence(), &expected];
        Ok(self.query(tx, COMMIT, &args).await?.try_get(0)?)
    }
}

impl Leases {
    /// Joins a group, and runs `work` in a task for each partition that this process owns, until the partition's
    /// [`token`](Scope::token) is cancelled. When `work` ends before, the partition begins anew under another fence: at
    /// once after [`Error::Refused`] and [`Error::Unsure`], else after a pause of 0.1 s, which doubles to 10 s.
    pub fn join<W>(&self, group: &str, work: impl Fn(Partition) -> W + Send + Sync + 'static) -> Running
    where
        W: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let (work, failures) = (Arc::new(move |partition| Box::pin(work(partition)) as _), HashMap::new());
        let member = Member { group: group.to_owned(), work, joined: None, failures };
        Verb::new(self).start(Box::pin(self.turn("join", group).lock_owned()), |verb| Box::pin(verb.follow(member)))
    }
}

type Work = dyn Fn(Partition) -> BoxFuture<Result<(), BoxError>> + Send + Sync;

struct Member {
    group: String,
    work: Arc<Work>,
    joined: Option<String>,                 // the session that is a member
    failures: HashMap<i64, Arc<AtomicU32>>, // of each partition, in a row
}

impl Look for Member {
    async fn look(&mut self, verb: &mut Verb, at: &Trusted) -> Result<(), Error> {
        match self.assign(verb, at).await {
            Err(error) if !matches!(error.of_server(), Some("42704" | "42501")) => {
                log!(warn, "eskit_lease: the assignment of {} has failed: {}", self.group, with_causes(&error));
                self.joined = None; // it may have been put out
                verb.patience = RETRY;
                Ok(())
            }
            done => done,
        }
    }

    async fn leave(&self, leases: &Leases) {
        let session = leases.session().unwrap_or_default();
        let _ = leases.give_back(&session, LEAVE, &[&self.group, &session]).await;
    }
}

impl Member {
    /// Asks which partitions the session owns, and has a task for each of them.
    async fn assign(&mut self, verb: &mut Verb, at: &Trusted) -> Result<(), Error> {
        let (leases, args) = (verb.leases.clone(), [&self.group as _, &at.session as _]);
        if self.joined.as_ref() != Some(&at.session) {
            leases.call(&at.session, JOIN, &args).await?;
        }
        self.joined = Some(at.session.clone());
        let mut listed = HashMap::new();
        for row in leases.call(&at.session, ASSIGNMENT, &args).await? {
            listed.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        }
        for (number, scope) in &verb.begun {
            match listed.remove(number) {
                Some((fence, true)) if fence == scope.fence() => (),
                Some((fence, false)) if fence == scope.fence() => scope.token.cancel(),
                _ => scope.over.cancel(),
            }
        }
        for (number, (fence, stays)) in listed {
            if stays && !leases.kept().used.contains(&fence) {
                self.begin(verb, number, Scope::new(&leases, &self.group, at, fence));
            } else {
                let _ = leases.give_back(&at.session, RELEASE, &[&self.group, &number, &fence]).await;
                verb.patience = RETRY; // if it was refused
            }
        }
        Ok(())
    }

    /// Starts the task of a partition.
    fn begin(&mut self, verb: &mut Verb, number: i64, scope: Arc<Scope>) {
        let partition = Partition { scope: scope.clone(), number: number as i32 };
        let (work, failures) = (self.work.clone(), self.failures.entry(number).or_default().clone());
        verb.begin(number, scope.clone(), async move {
            let ended = scope.run(Box::pin(async move { work(partition).await })).await;
            let begins_anew = matches!(ended, Err(Error::Lost(_) | Error::Refused(_) | Error::Unsure(_)));
            if begins_anew || scope.token.is_cancelled() {
                failures.store(0, Relaxed);
            } else {
                log!(warn, "eskit_lease: the work of partition {number} of {} has ended: {ended:?}", scope.name());
                let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow(failures.fetch_add(1, Relaxed).min(7)));
                scope.token.run_until_cancelled(sleep(pause)).await;
            }
            scope.give_back(RELEASE, &[&scope.name(), &number, &scope.fence()]).await;
        });
    }
}
