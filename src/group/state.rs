//! The state of a group: its settings, its members and which of them live, its partitions with owners and targets.

use super::assign::Assignor;
use super::{members, targets};
use crate::base::limits;
use crate::call::Call;
use crate::lease::declaration::{self, Kind};
use crate::lease::row::{LeaseRow, Leases};
use crate::pg::table::{Change, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::Text;
use crate::pg::{catalog, clock, required};
use crate::session::holders::{Holders, living_rows};
use crate::session::{SessionRow, succession};
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::{HashMap, HashSet};

/// Up to this many stale steps of a walk through the members, a group is not crowded. Each step passes over eight rows
/// of former members.
const CROWD: usize = 8;

/// How the targets take a member into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    Active,
    Draining,
}

impl Counted {
    pub fn name(self) -> &'static str {
        match self {
            Counted::Active => "active",
            Counted::Draining => "draining",
        }
    }

    fn read(word: &str) -> Counted {
        let known = [Counted::Active, Counted::Draining].into_iter().find(|counted| counted.name() == word);
        required::known("_members", "counted", word, known, Counted::Draining)
    }
}

#[derive(Clone, Debug)]
pub struct Member {
    pub session: Uuid,
    /// The assignors sort by this: the consumer's name, then the session, which tells members of one name apart. The
    /// NUL between them sorts before every character of a name.
    pub id: String,
    pub alive: bool,
    pub draining: bool,
    pub counted: Option<Counted>,
    /// When a newcomer begins to count.
    pub settles_at: u64,
}

#[derive(Clone, Debug)]
pub struct Partition {
    /// The row of the lease, held or not.
    pub row: Option<LeaseRow>,
    /// The session that holds the lease, if it lives and is not letting go.
    pub owner: Option<Uuid>,
    pub target: Option<Uuid>,
    /// The fence that the owner must release, and its deadline.
    pub revoking: Option<(i64, u64)>,
}

impl Member {
    /// Records that a living session is this member.
    fn lives(&mut self, row: &SessionRow) {
        self.session = row.session;
        self.id = format!("{}\0{}", row.consumer, row.session);
        (self.alive, self.draining) = (true, row.draining);
    }
}

impl Partition {
    /// Returns the owner's fence.
    pub fn fence(&self) -> Option<i64> {
        self.owner.and(self.row).map(|row| row.fence)
    }
}

pub struct State {
    pub name: String,
    pub assignor: Assignor,
    pub rebalance_timeout_ms: i32,
    pub resize_to: Option<i32>,
    pub members: Vec<Member>,
    pub partitions: Vec<Partition>,
    /// Sessions that were taken over but still have a row as a member, each with its successor, which is the member.
    pub heirs: HashMap<Uuid, Uuid>,
    /// Whether `heirs` is complete. If the table of successions is locked, for example by VACUUM FULL, an assignment is
    /// read without `heirs`.
    pub knows_heirs: bool,
    /// How often the read of the members stepped over rows of former members.
    stale_members: usize,
    stale: bool,
    tid: ItemPointerData,
}

pub fn table() -> Table {
    Table::open(c"_groups", c"_groups_pkey")
}

const ASSIGNOR: usize = 2;
const TIMEOUT: usize = 3;
const SETTLE_DELAY: usize = 4;
/// Columns that change while the group stands.
pub const GENERATION: i32 = 5;
pub const STALE: i32 = 6;
pub const RESIZE_TO: i32 = 7;

/// Changes the row of a group by its ctid. Returns `None` if a statement must do it.
pub fn change(group: &str, changes: impl Fn(&Tuple) -> Option<Vec<Change>>) -> Option<u64> {
    table().update_rows(&[Key::Text(group)], changes)
}

/// Locks the row of a group unless another transaction has locked it.
pub fn try_lock(group: &str) -> bool {
    let groups = table();
    let tid = groups.find(Sight::Latest, &[Key::Text(group)], |row, _| Some(row.tid()));
    tid.is_some_and(|tid| groups.lock(tid, false) == Locked::Mine)
}

/// Returns whether the deadline for an owner to release a partition has passed. If so, the owner may begin nothing more
/// under its fence.
pub fn is_overdue(call: &Call, group: &str, partition: i32, fence: i64) -> bool {
    let Some(row) = targets::of(group, partition) else { return false };
    let Some((_, until)) = row.revoking.filter(|(asked, _)| *asked == fence) else { return false };
    let timeout_ms = || table().find(Sight::Latest, &[Key::Text(group)], |row, _| Some(row.required(TIMEOUT)));
    // A group without a row is being dropped: no transaction may begin work in it.
    let timeout_ms = if row.boot_id == call.shared.boot_id() { 0 } else { timeout_ms().unwrap_or(0) };
    call.shared.of_this_start(until, row.boot_id, timeout_ms) <= clock::now()
}

/// Returns the generation of a group's targets.
pub fn generation(group: &str) -> Option<i64> {
    table().find(Sight::Latest, &[Key::Text(group)], |row, _| Some(row.required(GENERATION as usize)))
}

impl State {
    /// Reads a group: what is committed, and what this transaction has done. `letting_go` returns whether this
    /// transaction releases a row.
    pub fn read(call: &Call, name: &str, letting_go: &dyn Fn(&LeaseRow) -> bool) -> Option<State> {
        let slots = declaration::of(name).filter(|known| known.kind == Kind::Group)?.slots;
        let mut settle_delay = 0;
        let mut state = table().find(Sight::Latest, &[Key::Text(name)], |row, _| {
            settle_delay = u64::from(row.required::<i32>(SETTLE_DELAY).cast_unsigned()) * 1_000;
            let assignor = row.required::<Text>(ASSIGNOR);
            let known = Assignor::parse(&assignor);
            Some(State {
                name: name.to_owned(),
                assignor: required::known("_groups", "assignor", &assignor, known, Assignor::Sticky),
                rebalance_timeout_ms: row.required(TIMEOUT),
                stale: row.required(STALE as usize),
                resize_to: row.get(RESIZE_TO as usize),
                members: Vec::new(),
                partitions: Vec::new(),
                heirs: HashMap::new(),
                knows_heirs: true,
                stale_members: 0,
                tid: row.tid(),
            })
        })?;
        state.partitions = vec![Partition { row: None, owner: None, target: None, revoking: None }; slots as usize];
        state.read_members(settle_delay, call.shared.boot_id());
        let rows = Leases::open().rows(name);
        state.tell_living(call);
        state.set_owners(call, rows, letting_go);
        state.read_targets(call);
        Some(state)
    }

    fn read_members(&mut self, settle_delay: u64, boot_id: i64) {
        let Self { name, members: known, .. } = self;
        self.stale_members = members::each(name, |row| {
            let session = row.required(members::SESSION);
            let of_this_start = row.required::<i64>(members::BOOT_ID) == boot_id;
            let joined = if of_this_start { row.required::<i64>(members::JOINED).cast_unsigned() } else { 0 };
            known.push(Member {
                session,
                id: String::new(),
                alive: false,
                draining: false,
                counted: row.get::<Text>(members::COUNTED).map(|word| Counted::read(&word)),
                settles_at: joined + settle_delay,
            });
        });
    }

    fn tell_living(&mut self, call: &Call) {
        let sessions: Vec<Uuid> = self.members.iter().map(|member| member.session).collect();
        let living: HashMap<Uuid, SessionRow> =
            living_rows(call, &sessions).into_iter().map(|row| (row.session, row)).collect();
        let mut named: HashSet<Uuid> = living.keys().copied().collect();
        self.members.retain_mut(|member| {
            if let Some(row) = living.get(&member.session) {
                member.lives(row);
                return true;
            }
            self.knows_heirs = self.knows_heirs && catalog::lock_all(&[c"_successions"]);
            let heir = self.knows_heirs.then(|| succession::living_successor(call, member.session));
            let Some(row) = heir.flatten() else { return true };
            self.heirs.insert(member.session, row.session);
            member.lives(&row);
            // A session counts as one member, however many memberships it inherits.
            named.insert(row.session)
        });
    }

    fn set_owners(&mut self, call: &Call, rows: Vec<LeaseRow>, letting_go: &dyn Fn(&LeaseRow) -> bool) {
        // Most owners are members, and the state already says whether they live. Only the other owners are looked up.
        let members: HashMap<Uuid, bool> = self.members.iter().map(|member| (member.session, member.alive)).collect();
        let sessions = rows.iter().filter_map(|row| row.session);
        let others = Holders::of(call, sessions.filter(|session| !members.contains_key(session)));
        let lives =
            |session: &Uuid| members.get(session).copied().unwrap_or_else(|| others.living(Some(*session)).is_some());
        for row in rows {
            if let Some(partition) = usize::try_from(row.slot).ok().and_then(|slot| self.partitions.get_mut(slot)) {
                partition.row = Some(row);
                partition.owner = row.session.filter(|session| lives(session) && !letting_go(&row));
            }
        }
    }

    fn read_targets(&mut self, call: &Call) {
        let (timeout_ms, partitions) = (self.rebalance_timeout_ms, &mut self.partitions);
        targets::each(&self.name, |row| {
            if let Some(partition) = usize::try_from(row.partition).ok().and_then(|slot| partitions.get_mut(slot)) {
                partition.target = row.target.map(|target| self.heirs.get(&target).copied().unwrap_or(target));
                // A revocation of a former owner's fence means nothing.
                let revoking = row.revoking.filter(|(fence, _)| partition.fence() == Some(*fence));
                let at = |until| call.shared.of_this_start(until, row.boot_id, timeout_ms);
                partition.revoking = revoking.map(|(fence, until)| (fence, at(until)));
            }
        });
    }

    /// Returns whether present members need new places: the rows of former members are at least twice as many.
    pub fn is_crowded(&self) -> bool {
        self.stale_members > CROWD.max(self.members.len() / 4)
    }

    /// Returns whether a rebalance would change the targets, or ask other owners to release.
    pub fn wants_rebalance(&self, now: u64) -> bool {
        let counted_as = |member: &Member| match (member.alive, member.draining) {
            (true, false) => Some(Counted::Active),
            (true, true) => Some(Counted::Draining),
            (false, _) => None,
        };
        let of_member = |member: &Member| match member.counted {
            Some(counted) => counted_as(member) != Some(counted),
            None => !member.alive || member.settles_at <= now,
        };
        let living: HashSet<Uuid> =
            self.members.iter().filter(|member| member.alive).map(|member| member.session).collect();
        let is_active = self.members.iter().any(|member| member.counted == Some(Counted::Active));
        let is_draining = |owner| self.members.iter().any(|member| member.session == owner && member.draining);
        // An owner by take-over has not been asked to release; only its predecessor has.
        let is_unasked = |known: &Partition| {
            known.target != known.owner
                && known.revoking.is_none()
                && known.owner.is_some_and(|owner| self.resize_to.is_some() || !is_draining(owner))
        };
        self.stale
            || !self.heirs.is_empty()
            || self.members.iter().any(of_member)
            || self.partitions.iter().any(is_unasked)
            || (self.resize_to.is_some() && !self.is_owned())
            || (self.resize_to.is_none() && is_active && self.partitions.iter().any(|known| known.target.is_none()))
            || self.partitions.iter().any(|known| self.is_astray(known))
            || self.partitions.iter().filter_map(|known| known.target).any(|target| !living.contains(&target))
    }

    /// Returns whether a session owns a partition whose target is another member, without having been asked to release
    /// it. That happens when a transaction granted the partition by other targets.
    fn is_astray(&self, known: &Partition) -> bool {
        let keeps = |owner| self.members.iter().any(|member| member.session == owner && member.draining);
        known.revoking.is_none() && known.owner.is_some_and(|owner| known.target != Some(owner) && !keeps(owner))
    }

    /// Returns whether a rebalance may be left to the worker, since it has only just become due. A dead member does not
    /// wait: the worker should have come for it already.
    pub fn can_wait(&self, now: u64) -> bool {
        self.members.iter().all(|member| {
            member.alive && (member.counted.is_some() || now < member.settles_at + limits::NEWCOMER_PATIENCE)
        })
    }

    pub fn is_owned(&self) -> bool {
        self.partitions.iter().any(|known| known.owner.is_some())
    }

    pub fn targets(&self) -> Vec<Option<Uuid>> {
        self.partitions.iter().map(|known| known.target).collect()
    }

    /// Returns the rows to write for some partitions, with the present start of shared memory.
    pub fn rows(&self, partitions: &[i32], boot_id: i64) -> Vec<targets::Row> {
        let row = |partition: &i32| {
            let known = &self.partitions[*partition as usize];
            let revoking = known.revoking.map(|(fence, at)| (fence, at.cast_signed()));
            targets::Row { partition: *partition, target: known.target, revoking, boot_id }
        };
        partitions.iter().map(row).collect()
    }

    /// Locks the group's row unless another transaction has locked or changed it.
    pub fn lock(&self) -> bool {
        table().lock(self.tid, false) == Locked::Mine
    }

    /// Returns the next deadline after `now` of a revocation or a newcomer, which no call announces.
    pub fn next_due(&self, now: u64) -> Option<u64> {
        let revocations = self.partitions.iter().filter_map(|known| known.revoking).map(|(_, at)| at);
        let newcomers = self.members.iter().filter(|member| member.counted.is_none() && member.alive);
        revocations.chain(newcomers.map(|member| member.settles_at)).filter(|at| *at > now).min()
    }
}
