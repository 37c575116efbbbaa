//! The seam between rows and shared memory: what a transaction changes in shared memory when it ends.
//!
//! Two transactions that cross do not see each other's rows. One leaves a resource free, the other queues for it, and
//! neither grants. So every verb that changes, fences or queues for a resource notes the resource here, with its
//! subtransaction. When the transaction has ended, by a commit or a rollback, and its changes are visible, the
//! resources go to the dirty ring. The worker judges them again. Both transactions do this, so after the later one the
//! worker sees the changes of both.
//!
//! | event            | sessions opened here | sessions ended here | sessions whose holdings or waits change | resources |
//! |------------------|----------------------|---------------------|------------|------------------------|
//! | pre-commit       |                      | frozen              |            | what is put off until then is done |
//! | commit           | unproven if need be  | dead                | unproven if need be, then the revision is bumped | to the ring |
//! | abort            | dead, without a trace | alive again        |            | to the ring, unchanged |
//! | pre-prepare      | refused if attached; promised | frozen; dead ones that lose something are marked | promised | |
//! | prepare          | unproven             | stay frozen         | unproven   | the xid is watched; at its end the sessions noted with it are woken, and the database is rescanned |
//! | rollback to savepoint | dead, without a trace | nothing was done yet |       | to the ring at once, unchanged |
//!
//! Work items have floors instead (see [`crate::shmem::floors`]). A commit lowers them to the items that became free, a
//! rollback to the items that were claimed, and PREPARE to both. Sessions that wait for items are woken at a commit,
//! when the items are due, and at the rollback of a claim. A row that has ended and is kept for a while is noted, so
//! that the worker comes when it must be removed (see [`crate::ending::retention`]).
//!
//! A session is unproven while [`crate::shmem::confirm`] does not vouch for what it was granted.
//!
//! Each kind of note is a type with its [`effect`]s, in [`resources`], [`sessions`], [`items`] or, about the worker's
//! work, [`work`]. [`notes`] has their list. [`end`] applies them: first the notes that decide which sessions live, or
//! lower floors; then the notes that wake processes.
//!
//! What a transaction counts is no note: see [`tally`].
//!
//! Files, low to high: effect, items, news, resources, sessions, work, tally, notes, end, mod.

mod effect;
mod end;
mod items;
mod news;
mod notes;
mod resources;
mod sessions;
mod tally;
mod work;

use crate::pg::{statement, transaction};
use crate::shmem::Shared;
use crate::shmem::counters::Counter;
use crate::shmem::databases::{Database, Kept};
use crate::shmem::dirty::Dirty;
use crate::shmem::floors::Lane;
use crate::shmem::hunger::Food;
use crate::shmem::slots::SlotRef;
use effect::Memory;
use items::{AllPlaces, Due, EndedHeads, Items, Places};
use news::News;
use notes::{Kind, NOTES, Notes, What, near, next_epoch, now};
use pgrx::Uuid;
use resources::{Act, AtCommit, InVain, Later, Many, Pass, Resource};
use sessions::{Ended, Left, Opened, Revision, TakenFrom};
use std::collections::HashSet;
use work::{Retained, Taken};

pub use end::has_warned;
pub use notes::epoch;

/// What verbs call to make notes. All notes are for the database that this backend is connected to.
#[derive(Clone, Copy)]
pub struct Seam {
    pub shared: &'static Shared,
    pub database: &'static Database,
}

impl Seam {
    /// Notes that the owner of a slot of the resource changes if this transaction commits.
    pub fn changed(self, resource: &str, slot: i32) {
        NOTES.with_borrow_mut(|notes| {
            // The list is searched only if this transaction has passed a check: a bulk call changes many resources.
            notes.newest = now();
            let noted = if notes.passes > 0 { notes.list.as_mut_slice() } else { &mut [] };
            for pass in noted.iter_mut().filter_map(|note| Pass::of_mut(&mut note.what)) {
                if pass.given_away.is_none() && pass.slot == slot && pass.name == resource {
                    pass.given_away = Some(notes.newest);
                    notes.given_away += 1;
                }
            }
        });
        self.note(Resource { name: resource.to_owned(), changed: Some(slot) });
    }

    /// Notes that the resource must be judged: a session queues for it, or this transaction has had locks that may have
    /// been in others' way.
    pub fn judge(self, resource: &str) {
        self.note(Resource { name: resource.to_owned(), changed: None });
    }

    /// Notes that a session could not get the resource. The worker retries soon, unless a retry is due already.
    pub fn in_vain(self, resource: &str) {
        self.note_once(InVain { name: resource.to_owned() });
    }

    /// Asks the worker to judge the resource at `at`, if this transaction commits.
    pub fn judge_at(self, resource: &str, at: u64) {
        self.note(Later { name: resource.to_owned(), at });
    }

    /// Does `act` for the resource just before this transaction commits; not if it is prepared.
    pub fn at_commit(self, resource: &str, act: Act) {
        self.note_once(AtCommit { name: resource.to_owned(), act });
    }

    pub fn fenced(self, resource: &str, slot: i32, fence: i64, session: SlotRef) {
        self.note(Pass { name: resource.to_owned(), slot, fence, session, given_away: None });
    }

    /// Notes that this transaction has only checked a fence so far, and ends with the statement unless the client adds
    /// to its pipeline. A transaction that ends so has protected nothing. The caller has seen that the statement has no
    /// other effect: a check also protects effects that need no transaction id, such as NOTIFY.
    pub fn checked_alone(self) {
        NOTES.with_borrow_mut(|notes| notes.checked_alone = Some(statement::began_at()));
    }

    /// Returns whether a check of the fence, noted by this transaction, still stands. A rollback to a savepoint forgets
    /// the checks after it, and giving the lease away ends a check.
    pub fn has_fenced(self, fence: i64) -> bool {
        let stands = |pass: &Pass| pass.fence == fence && pass.given_away.is_none();
        NOTES.with_borrow(|notes| notes.each().any(stands))
    }

    /// Notes that this transaction judges a resource that it has taken out of the ring.
    pub fn judged(self, dirty: &Dirty) {
        self.note(Taken::Resource { name: dirty.resource.clone(), changed: dirty.changed, since: dirty.since });
    }

    /// Notes that this transaction changes more resources than can be listed.
    pub fn many(self) {
        self.note(Many);
    }

    /// Notes that this transaction does what these flags of the database ask for. They are set again if it fails.
    pub fn flags(self, flags: u32) {
        self.note(Taken::Flags(flags));
    }

    /// Raises the session's revision if this transaction commits: it changes what the session holds or waits for.
    pub fn revise(self, session: SlotRef) {
        let now = now();
        let known = |what: &What| Revision::of(what).is_some_and(|known| known.session == session);
        let twice = NOTES.with_borrow(|notes| notes.list.iter().any(|n| n.subtransaction == now && known(&n.what)));
        if !twice {
            self.note(Revision { session });
        }
    }

    pub fn opened(self, session: SlotRef, attached: bool) {
        self.note(Opened { session, attached });
    }

    /// Notes that this transaction has taken something from dead sessions. If it is prepared it keeps them dead over a
    /// restart, which would otherwise give them their TTL anew. Returns the sessions that were not noted before.
    pub fn taken_from(self, sessions: &[Uuid]) -> Vec<Uuid> {
        if sessions.is_empty() {
            return Vec::new();
        }
        let now = now();
        let add =
            |noted: &mut HashSet<Uuid>| sessions.iter().copied().filter(|session| noted.insert(*session)).collect();
        let known = NOTES.with_borrow_mut(|notes| {
            // The notes of this subtransaction are the last ones.
            let mut of_now = notes.list.iter_mut().rev().take_while(|note| note.subtransaction == now);
            of_now.find_map(|note| TakenFrom::of_mut(&mut note.what)).map(|taken| add(&mut taken.sessions))
        });
        known.unwrap_or_else(|| {
            let mut noted = HashSet::new();
            let new = add(&mut noted);
            self.note(TakenFrom { sessions: noted });
            new
        })
    }

    /// Notes that this transaction ends the session. `gone`: no row of the session is left.
    pub fn ended(self, session: SlotRef, gone: bool) {
        let opened_here = || NOTES.with_borrow(|notes| notes.each().any(|opened: &Opened| opened.session == session));
        let left = match gone {
            false => Left::Rows,
            true if opened_here() => Left::Nothing,
            true => Left::Tombstone,
        };
        self.note(Ended { session, left });
    }

    /// Notes that items of a lane have been claimed, or have become free: none before the place `from`.
    pub fn places(self, lane: Lane, from: i64, claimed: bool) {
        self.note_once(Places { lane, from, claimed });
    }

    /// Returns the first place of a lane from which this transaction has claimed. Its items are free again if the
    /// transaction fails.
    pub fn first_claimed(self, lane: Lane) -> i64 {
        let is_claimed = |places: &&Places| places.claimed && places.lane == lane;
        NOTES.with_borrow(|notes| {
            let any = notes.each::<AllPlaces>().next().map(|_| i64::MIN);
            any.or_else(|| notes.each().filter(is_claimed).map(|places| places.from).min()).unwrap_or(i64::MAX)
        })
    }

    /// Returns the partitions in which this transaction has made items of a queue free; `None` if there are more than
    /// are noted.
    pub fn freed(self, queue: i32) -> Option<HashSet<i32>> {
        let is_freed = |places: &&Places| !places.claimed && places.lane.queue == queue;
        NOTES.with_borrow(|notes| {
            let all = notes.each::<AllPlaces>().next().is_some();
            (!all).then(|| notes.each().filter(is_freed).map(|places| places.lane.partition).collect())
        })
    }

    /// Notes that items become free in a queue if this transaction commits.
    pub fn items(self, queue: i32, name: &str, food: Food) {
        self.note_once(Items { queue, name: name.to_owned(), food });
    }

    /// Notes that items of a queue become due if this transaction commits: none before `at`.
    pub fn due(self, queue: i32, at: i64) {
        self.note_once(Due { queue, at });
    }

    /// Notes that the head of a key, which had the number `since` in its lane, has been ended.
    pub fn ended_head(self, since: i64) {
        self.note_once(EndedHeads { first: since });
    }

    /// Returns the first number of the heads that this transaction has ended. These heads exist again if the
    /// transaction fails.
    pub fn first_ended_head(self) -> i64 {
        NOTES.with_borrow(|notes| notes.each().map(|heads: &EndedHeads| heads.first).min()).unwrap_or(i64::MAX)
    }

    /// Notes that this transaction, whose id is `xid`, has drawn positions. A rollback to a savepoint does not undo
    /// that: the client may insert a row with the position later.
    pub fn drew(self, xid: i64) {
        let is_noted = |notes: &Notes| notes.list.first().is_some_and(|first| News::of(&first.what).is_some());
        if !NOTES.with_borrow(is_noted) {
            self.note(News { xid });
            NOTES.with_borrow_mut(Notes::keep_last);
        }
    }

    /// Notes that a row has ended, and is kept for a while if this transaction commits.
    pub fn kept(self, kind: Kept) {
        self.note_once(Retained { kind });
    }

    /// Notes that this transaction tells shared memory which kept rows remain. If it fails, shared memory must forget
    /// that.
    pub fn retired(self) {
        self.note(Taken::Retention);
    }

    /// Notes that this transaction tells listeners of items, as the ring has asked it to.
    pub fn told(self, queue: &str) {
        self.note(Taken::Listeners { queue: queue.to_owned() });
    }

    /// Counts something, if this transaction commits.
    pub fn count(self, counter: Counter, by: usize) {
        if by > 0 {
            self.tally(|notes| notes.tally.count(notes.newest, counter, by as u64));
        }
    }

    /// Counts the hand-over of a lease that has been free since `free_since`, if this transaction commits.
    pub fn handed_over(self, free_since: Option<u64>) {
        self.tally(|notes| notes.tally.handed_over(notes.newest, free_since));
    }

    fn tally(self, count: impl FnOnce(&mut Notes)) {
        transaction::assert_may_raise();
        end::register();
        NOTES.with_borrow_mut(|notes| {
            notes.begin(Memory { shared: self.shared, database: self.database, worker: notes.worker });
            count(notes);
        });
    }

    fn note(self, what: impl Into<What>) {
        transaction::assert_may_raise();
        next_epoch();
        end::register();
        NOTES.with_borrow_mut(|notes| {
            let memory = Memory { shared: self.shared, database: self.database, worker: notes.worker };
            notes.add(memory, what.into());
        });
    }

    /// Makes a note, unless one of the last notes absorbs it.
    fn note_once(self, what: impl Into<What>) {
        let what = what.into();
        if !near(&what) {
            self.note(what);
        }
    }
}

/// Returns this transaction's passes for a slot of a resource, or for any slot: the fences of the passes that stand,
/// and whether other passes have ended because this transaction gave the lease away.
pub fn passes(resource: &str, slot: Option<i32>) -> (Vec<i64>, bool) {
    let (mut standing, mut given) = (Vec::new(), false);
    NOTES.with_borrow(|notes| {
        let of = |pass: &&Pass| slot.is_none_or(|slot| slot == pass.slot) && pass.name == resource;
        for pass in notes.each().filter(of) {
            match pass.given_away {
                None => standing.push(pass.fence),
                Some(_) => given = true,
            }
        }
    });
    (standing, given)
}

/// Returns whether this transaction ends the session.
pub fn has_ended(session: Uuid) -> bool {
    NOTES.with_borrow(|notes| notes.each().any(|ended: &Ended| ended.session.session() == session))
}

/// Returns the sessions that this transaction ends.
pub fn ended() -> Vec<Uuid> {
    NOTES.with_borrow(|notes| notes.each().map(|ended: &Ended| ended.session.session()).collect())
}

/// Returns whether this transaction changes what the session holds or waits for.
pub fn revises(session: SlotRef) -> bool {
    NOTES.with_borrow(|notes| notes.each().any(|revision: &Revision| revision.session == session))
}

/// Returns whether this transaction ends any session.
pub fn ends_sessions() -> bool {
    NOTES.with_borrow(|notes| notes.each::<Ended>().next().is_some())
}

/// Makes this backend a worker. A worker does not post to the ring what its own transactions commit.
pub fn i_am_a_worker() {
    NOTES.with_borrow_mut(|notes| notes.worker = true);
}
