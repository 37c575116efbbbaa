//! `join`: the partitions of a consumer group.

use crate::error::{BoxError, Error, with_causes};
use crate::keeper::log;
use crate::leases::{Leases, Running, Verb, run};
use crate::line::BoxFuture;
use crate::scope::{Grant, Scope};
use std::collections::HashMap;
use std::{ops::Deref, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::Transaction;
use tokio_util::sync::CancellationToken;

pub(crate) const POSITION: &str = "SELECT eskit_lease.cursor_position($1, $2::int)";
pub(crate) const COMMIT: &str = "SELECT eskit_lease.cursor_commit($1, $2::int, $3::bigint, $4::bigint, $5::bigint)";

const BRIEF_PAUSE: Duration = Duration::from_secs(1); // after an error of the assignment
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A partition that this process owns: a [`Scope`] with a cursor.
pub struct Partition {
    scope: Scope,
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
        Ok(self.query(tx, POSITION, &[self.name(), &self.number.to_string()]).await?.try_get(0)?)
    }

    /// Moves the cursor from `expected` to `position`, and checks the fence. False if the cursor was at `position` or
    /// beyond: apply nothing then.
    pub async fn commit(&self, tx: &Transaction<'_>, position: i64, expected: i64) -> Result<bool, Error> {
        let args = [i64::from(self.number), position, self.fence(), expected].map(|number| number.to_string());
        Ok(self.query(tx, COMMIT, &[self.name(), &args[0], &args[1], &args[2], &args[3]]).await?.try_get(0)?)
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
        let (leases, group, work) = (self.clone(), group.to_owned(), Box::new(move |part| Box::pin(work(part)) as _));
        let (tasks, owned, failures) = (JoinSet::new(), HashMap::new(), HashMap::new());
        Member { leases, group: group.clone(), work: Arc::new(work), tasks, owned, failures }.run(self, "join", &group)
    }
}

type Work = dyn Fn(Partition) -> BoxFuture<Result<(), BoxError>> + Send + Sync;

struct Member {
    leases: Leases,
    group: String,
    work: Arc<Work>,
    tasks: JoinSet<(i32, u32)>, // for each partition that is owned; ends with how often in a row it has failed
    owned: HashMap<i32, Grant>,
    failures: HashMap<i32, u32>,
}

impl Verb for Member {
    async fn follow(&mut self, end: &CancellationToken) -> Result<(), Error> {
        let keeper = self.leases.keeper.clone();
        let mut asks = keeper.asks.subscribe();
        let (session, _) = keeper.trusted(end).await?;
        keeper.call(&session, "SELECT eskit_lease.group_join($1, $2::uuid)", &[&self.group, &session]).await?;
        loop {
            let (now, scopes) = keeper.trusted(end).await?;
            if now != session {
                return Err(Error::lost());
            }
            asks.borrow_and_update();
            if let Err(error) = self.assign(&session, &scopes).await {
                if matches!(error, Error::Lost(_)) || matches!(error.of_server(), Some("42704" | "42501" | "55000")) {
                    return Err(error);
                }
                log!(warn, "eskit_lease: the assignment of {} has failed: {}", self.group, with_causes(&error));
                keeper.until(end, sleep(BRIEF_PAUSE)).await?;
                continue;
            }
            tokio::select! {
                told = keeper.until(end, asks.changed()) => drop(told?),
                Some(Ok((number, failures))) = self.tasks.join_next() => {
                    self.owned.remove(&number);
                    self.failures.insert(number, failures);
                }
            }
        }
    }

    async fn leave(&mut self) {
        self.owned.values().for_each(|grant| grant.token.cancel());
        while self.tasks.join_next().await.is_some() {}
        let (keeper, session) = (&self.leases.keeper, self.leases.session().unwrap_or_default());
        let sql = "SELECT eskit_lease.group_leave($1, $2::uuid)";
        let _ = keeper.give_back(&session, sql, &[&self.group, &session]).await;
    }
}

impl Member {
    /// Asks which partitions the session owns, and has a task for each of them.
    async fn assign(&mut self, session: &str, scopes: &CancellationToken) -> Result<(), Error> {
        let sql = "SELECT partition, fence, state = 'owned' FROM eskit_lease.group_assignment($1, $2::uuid)";
        let mut listed = HashMap::new();
        for row in self.leases.keeper.call(session, sql, &[&self.group, session]).await? {
            listed.insert(row.try_get(0)?, (row.try_get::<_, i64>(1)?, row.try_get(2)?));
        }
        for (number, grant) in &self.owned {
            match listed.get(number) {
                Some((fence, true)) if *fence == grant.fence => (),
                Some((fence, false)) if *fence == grant.fence => grant.token.cancel(),
                _ => grant.over.cancel(),
            }
        }
        for (number, (fence, stays)) in listed {
            if !self.owned.contains_key(&number) {
                self.begin(number, Grant::new(session, fence, scopes), stays);
            }
        }
        Ok(())
    }

    /// Starts the task of a partition. One that does not stay is only released.
    fn begin(&mut self, number: i32, grant: Grant, stays: bool) {
        self.owned.insert(number, grant.clone());
        let partition = Partition { scope: Scope::new(&self.leases, &self.group, &grant), number };
        let (keeper, work, group) = (self.leases.keeper.clone(), self.work.clone(), self.group.clone());
        let failures = self.failures.get(&number).copied().unwrap_or(0);
        self.tasks.spawn(async move {
            if !stays {
                grant.over.cancel();
            }
            let ended = run(&grant.over, async move { work(partition).await }).await;
            let begins_anew = matches!(ended, Err(Error::Lost(_) | Error::Refused(_) | Error::Unsure(_)));
            let failed = !begins_anew && !grant.token.is_cancelled();
            if failed {
                log!(warn, "eskit_lease: the work of partition {number} of {group} has ended: {ended:?}");
                let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow(failures.min(7)));
                grant.token.run_until_cancelled(sleep(pause)).await;
            }
            grant.over.cancel();
            let sql = "SELECT eskit_lease.group_release($1, $2::int, $3::bigint)";
            let args = [&*group, &number.to_string(), &grant.fence.to_string()];
            let _ = keeper.give_back(&grant.session, sql, &args).await;
            (number, if failed { failures + 1 } else { 0 })
        });
    }
}
