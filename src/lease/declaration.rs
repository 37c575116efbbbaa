//! Declarations of names. A declared name is not an exclusive lease. It is a semaphore, whose slots are permits; a
//! group, whose slots are partitions; or a bridge, whose one slot stands for a user's lock or row (see
//! [`crate::bridge`]).
//!
//! There is one name space. A name that is held or waited for cannot be declared, and a declared name cannot become a
//! plain lease. A transaction that declares a name and one that acquires it do not see each other's uncommitted rows in
//! their snapshots. So both hold the name's stripe for the time of the call (see [`crate::lease::grant`]) and look with
//! a dirty snapshot. The later of the two finds the rows of the earlier one in flight, and gives up.
//!
//! The declaration may change or be dropped while another session grants a slot of it. A grant writes first, then reads
//! the declaration again. A drop deletes the declaration first, then looks at the slots. So one of the two sees the
//! other.
//!
//! A change of a declaration locks its row. Other calls also lock the row: a rebalance of a group, and a grant of a
//! semaphore that shrinks. So a change retries the lock for a while ([`patiently`]), but does not wait for a
//! transaction that stays open.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given};
use crate::pg::table::{Flight, Key, Locked, Sight, Stand, Table, Tuple};
use crate::pg::text::{Text, role_of_name};
use crate::pg::{catalog, clock, lock_timeout, required, role};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{ItemPointerData, Oid};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Semaphore,
    Group,
    Bridge,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Semaphore => "semaphore",
            Kind::Group => "group",
            Kind::Bridge => "bridge",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Declaration {
    pub kind: Kind,
    pub slots: i32,
    owner: String,
    tid: ItemPointerData,
    number: Option<i64>,
}

/// The state of a name, uncommitted changes of other transactions included.
#[derive(Debug)]
pub enum Stands {
    Absent,
    /// Another transaction is declaring, changing or dropping the name.
    InFlight(Kind),
    Declared(Declaration),
}

/// The column of the name.
const RESOURCE: usize = 1;

/// The column of the declaration's number, which grows with each declaration of a name. Before 0.3.0 it does not exist.
const NUMBER: usize = 5;

pub(super) fn table() -> Table {
    Table::open(c"_declarations", c"_declarations_pkey")
}

fn read(row: &Tuple) -> Declaration {
    let name = row.required::<Text>(2);
    let kind = [Kind::Semaphore, Kind::Group, Kind::Bridge].into_iter().find(|kind| *name == *kind.name());
    let slots = match row.required(3) {
        known @ 1..=limits::MAX_SLOTS => known,
        other => required::known("_declarations", "slots", &other.to_string(), None, 0),
    };
    Declaration {
        kind: kind.unwrap_or_else(|| catalog::unserved(format!("A name is declared as a {}.", name.0))),
        slots,
        owner: row.required::<Text>(4).0,
        tid: row.tid(),
        number: row.get(NUMBER),
    }
}

impl Declaration {
    /// Returns the index key of the declaration's row. Before 0.3.0 the index has the name alone.
    pub(super) fn key<'a>(&self, resource: &'a str) -> Vec<Key<'a>> {
        [Key::Text(resource)].into_iter().chain(self.number.map(Key::Long)).collect()
    }
}

impl Call {
    /// Returns the declarations. A call opens their table once.
    pub fn declarations(&self) -> Declarations<'_> {
        Declarations(self.tables.declarations.get_or_init(table))
    }
}

/// The table of declarations, to look up many names.
pub struct Declarations<'a>(&'a Table);

impl Declarations<'_> {
    /// Returns the declaration of a name, if it is committed or this transaction's own.
    pub fn of(&self, resource: &str) -> Option<Declaration> {
        self.find(Sight::Latest, resource).map(|(declaration, _)| declaration)
    }

    /// Returns the declaration in the last visible version of a name's row.
    fn find(&self, sight: Sight, resource: &str) -> Option<(Declaration, Flight)> {
        let key = [Key::Text(resource)];
        if self.0.key_columns() == 1 {
            return self.0.find(sight, &key, |row, flight| Some((read(row), flight)));
        }
        self.0.find_numbered(sight, &key, NUMBER).map(|flight| (read(&self.0.row()), flight))
    }

    /// Visits the names that can be leased, and passes up to `most` versions of rows.
    pub fn each_leasable(&self, most: usize, mut visit: impl FnMut(&str)) {
        let mut walk = self.0.walk_versions(Sight::Latest, &[]);
        for _ in 0..most {
            match walk.one_version() {
                Stand::Row(_) => (),
                Stand::Stale => continue,
                Stand::End => return,
            }
            let row = self.0.row();
            if read(&row).kind != Kind::Group {
                visit(&row.required::<Text>(RESOURCE));
            }
        }
    }

    /// Returns the state of a name.
    pub fn stands(&self, resource: &str) -> Stands {
        if !self.0.has_entry(&[Key::Text(resource)]) {
            return Stands::Absent;
        }
        let found = self.find(Sight::Dirty, resource).map(|(declaration, flight)| match flight {
            Flight::None => Stands::Declared(declaration),
            _ => Stands::InFlight(declaration.kind),
        });
        // A dirty scan may miss a row that an update is moving.
        found.unwrap_or_else(|| match self.of(resource) {
            Some(declaration) => Stands::InFlight(declaration.kind),
            None => Stands::Absent,
        })
    }

    /// Returns whether no name is declared or being declared; usually one look tells. Returns false also if an old
    /// snapshot keeps many dropped declarations, which it does not pass.
    pub fn none(&self) -> bool {
        !self.0.has_entry(&[])
            || [Sight::Dirty, Sight::Latest]
                .into_iter()
                .all(|sight| matches!(self.0.walk_versions(sight, &[]).step(), Stand::End))
    }
}

pub fn of(resource: &str) -> Option<Declaration> {
    Declarations(&table()).of(resource)
}

pub fn stands(resource: &str) -> Stands {
    Declarations(&table()).stands(resource)
}

/// Returns the names that are groups, and the other names.
pub fn groups_among(call: &Call, names: Vec<String>) -> (Vec<String>, Vec<String>) {
    if call.declarations().none() {
        return (Vec::new(), names);
    }
    names.into_iter().partition(|name| call.declarations().of(name).is_some_and(|known| known.kind == Kind::Group))
}

/// Returns the declaration of a name that must be of a kind.
pub fn of_kind(resource: &str, kind: Kind) -> Result<Declaration> {
    of_kind_if_any(resource, kind)?.ok_or_else(|| unknown(resource, kind))
}

/// Returns the error that no such name is declared.
pub fn unknown(resource: &str, kind: Kind) -> ErrorReport {
    Error::Unknown { kind: kind.name(), name: resource.to_owned() }.into()
}

/// Returns the declaration of a name, if it has one. Refuses a name of another kind.
fn of_kind_if_any(resource: &str, kind: Kind) -> Result<Option<Declaration>> {
    match of(resource) {
        Some(known) if known.kind != kind => {
            Err(Error::WrongKind { name: resource.to_owned(), is: known.kind.name(), wanted: kind.name() }.into())
        }
        known => Ok(known),
    }
}

/// Refuses a partition that the group does not have.
pub fn require_partition(group: &str, partition: i32) -> Result<()> {
    let partitions = of_kind(group, Kind::Group)?.slots;
    if (0..partitions).contains(&partition) {
        return Ok(());
    }
    Err(Error::NoPartition { group: group.to_owned(), partition, partitions }.into())
}

/// Returns a partition argument; refuses one that the group does not have.
pub fn partition_arg(group: &str, partition: Option<i32>) -> Result<i32> {
    let partition = partition.given("partition")?;
    require_partition(group, partition).map(|()| partition)
}

/// Refuses a name that cannot be acquired: a group has no lease.
pub fn require_leasable(resource: &str, declaration: &Declaration) -> Result<()> {
    match declaration.kind {
        Kind::Semaphore | Kind::Bridge => Ok(()),
        Kind::Group => {
            Err(Error::WrongKind { name: resource.to_owned(), is: Kind::Group.name(), wanted: "lease" }.into())
        }
    }
}

/// Returns whether a name still has the kind and number of slots by which a slot was chosen, with no change in flight.
pub fn still(resource: &str, (kind, slots): (Kind, i32)) -> bool {
    matches!(stands(resource), Stands::Declared(known) if (known.kind, known.slots) == (kind, slots))
}

/// Returns a number of slots; refuses one outside the limits.
pub fn slots_arg(what: &'static str, slots: Option<i32>) -> Result<i32> {
    let slots = slots.given(what)?;
    if (1..=limits::MAX_SLOTS).contains(&slots) {
        return Ok(slots);
    }
    Err(Error::Number { what, given: slots.into(), min: 1, max: limits::MAX_SLOTS.into() }.into())
}

/// Returns the declaration of a name, if it has one. Refuses a caller who does not own it.
pub fn owned_if_any(call: &Call, resource: &str, kind: Kind) -> Result<Option<Declaration>> {
    let declaration = of_kind_if_any(resource, kind)?;
    if let Some(declaration) = &declaration {
        authorize(call, resource, declaration)?;
    }
    Ok(declaration)
}

/// Locks and returns the declaration of a name, if it has one. Refuses a caller who does not own it.
pub fn lock_if_any(call: &Call, resource: &str, kind: Kind) -> Result<Option<Declaration>> {
    patiently(resource, || {
        let declaration = owned_if_any(call, resource, kind)?;
        Ok(declaration.as_ref().is_none_or(try_lock).then_some(declaration))
    })
}

/// Locks and returns the declaration of a name that the caller owns; refuses a name without one.
pub fn lock_owned(call: &Call, resource: &str, kind: Kind) -> Result<Declaration> {
    lock_if_any(call, resource, kind)?.ok_or_else(|| unknown(resource, kind))
}

/// Repeats an attempt until no other session is in its way. Refuses after [`limits::DECLARATION_PATIENCE`], or after
/// lock_timeout if that is shorter.
pub fn patiently<T>(name: &str, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let most = lock_timeout::of_caller().unwrap_or(limits::DECLARATION_PATIENCE);
    let until = clock::now() + limits::DECLARATION_PATIENCE.min(most);
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        if clock::now() >= until {
            return Err(Error::BeingDeclared { name: name.to_owned() }.into());
        }
        pgrx::check_for_interrupts!();
        clock::pause(limits::DECLARATION_PAUSE);
    }
}

/// Locks a declaration, unless another transaction has locked or changed its row.
pub fn try_lock(declaration: &Declaration) -> bool {
    table().lock(declaration.tid, false) == Locked::Mine
}

/// Refuses a caller who may not change a declaration.
fn authorize(call: &Call, resource: &str, declaration: &Declaration) -> Result<()> {
    require_owner(call, declaration.kind.name(), resource, &declaration.owner)
}

/// Refuses a caller who may not change what a role has declared. The caller must be, or be a member of, that role or
/// the extension's owner. The role is stored by name, because a dump may be restored where roles have other oids.
pub fn require_owner(call: &Call, kind: &'static str, name: &str, owner: &str) -> Result<()> {
    let may_use = |role: Oid| role != Oid::INVALID && role::acts_as(call.caller, role);
    if may_use(role_of_name(owner)) || may_use(call.owner()) {
        return Ok(());
    }
    Err(Error::NotOwner { kind, name: name.to_owned(), owner: owner.to_owned() }.into())
}
