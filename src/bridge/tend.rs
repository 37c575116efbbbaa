//! Tending: the database worker holds the lock or the row of each bridge whose lease lives or is waited for.
//!
//! A bridge that is wanted is judged repeatedly, by way of the ring. While all is well that happens once a second: to
//! see whether the bridge is still wanted, whether an old worker waits, and to keep the row. The worker retries sooner
//! while the lock or the row cannot be had, or the holder cannot get its new fence. The waits double from 10 ms to a
//! second. While another owner has the row, the worker waits for the end of that owner's time, a second at most. The
//! entry in the ring outlives the worker, so that another worker is started for the bridge. A worker with such bridges
//! does not exit, because its locks would end with it.

use super::advisory;
use super::row::{self, Taken};
use super::side::{self, Side, may_be, table};
use crate::base::limits;
use crate::call::Call;
use crate::lease::candidate::Candidate;
use crate::lease::declaration::Kind;
use crate::lease::grant;
use crate::lease::line;
use crate::lease::row::{LeaseRow, Leases, Probe, Seat};
use crate::pg::guard::{Guard, Mode};
use crate::pg::{catalog, clock, transaction};
use crate::session::holders::Holders;
use crate::shmem::Shared;
use crate::shmem::databases::Database;
use pgrx::Uuid;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// The start of a transaction, which distinguishes it from other transactions of the same process.
type Transaction = i64;

fn this_transaction() -> Transaction {
    transaction::began_at()
}

/// A bridge that is wanted, or whose row must still be left.
struct Bridge {
    side: Side,
    /// Whether this process holds the lock. Whether it owns a row is read from the row each time.
    held: bool,
    /// The new fence that the worker has given to the holder that it found when it took the lock, and the transaction
    /// of that grant.
    renewed: Option<(i64, Transaction)>,
    /// Whether checks may pass and the lease may be granted; for a row, as of the last look.
    open: bool,
    wait: u64,
    /// The last message about why the row cannot be kept; `None` if nothing was told yet.
    told: Option<Option<String>>,
}

/// The state of the lease of a bridge.
enum Lease {
    /// The line is empty. The lease is free, or has this dead holder.
    Unwanted(Option<Uuid>),
    /// The lease is free, and the line is not empty.
    Awaited,
    Held(LeaseRow),
    /// Another transaction is just releasing or changing the lease.
    Changing,
}

#[derive(Default)]
struct Tended {
    /// The extension's identity: the extension may have been dropped and created again since.
    home: u32,
    bridges: HashMap<String, Bridge>,
}

thread_local! {
    /// Set in a database worker only.
    static TENDED: RefCell<Option<Tended>> = const { RefCell::new(None) };
}

/// Makes this process a database worker.
pub fn begin() {
    TENDED.set(Some(Tended::default()));
}

/// Returns whether this process has bridges to tend.
pub fn is_tending() -> bool {
    TENDED.with_borrow(|tended| tended.as_ref().is_some_and(|tended| !tended.bridges.is_empty()))
}

/// Returns whether this process may grant the lease of a bridge. An old worker that waits comes first.
pub fn may_grant(resource: &str) -> bool {
    let bridge = |tended: &Tended| {
        let bridge = tended.bridges.get(resource)?;
        Some(bridge.open && !bridge.is_waited_for())
    };
    // While the worker tends bridges, the only grants are new fences for their holders.
    TENDED.with(|tended| tended.try_borrow().ok().and_then(|tended| tended.as_ref().and_then(bridge)).unwrap_or(false))
}

/// Takes or releases the other sides of the bridges among some names. Returns the bridges whose leases cannot be
/// granted yet; these are judged again without a request.
pub fn tend(call: &Call, names: &[String]) -> HashSet<String> {
    let any = || !call.declarations().none() && may_be() && table().has_entry(&[]);
    if !is_tending() && !any() {
        return HashSet::new();
    }
    let is_bridge = |name: &str| call.declarations().of(name).is_some_and(|known| known.kind == Kind::Bridge);
    TENDED.with_borrow_mut(|tended| match tended {
        Some(tended) => {
            tended.come_home(call);
            let closed = |name: &&String| {
                let side = if is_bridge(name) { Side::of(name) } else { None };
                !tended.tend(call, name, side)
            };
            names.iter().filter(closed).cloned().collect()
        }
        None => {
            let bridges: HashSet<String> = names.iter().filter(|name| is_bridge(name)).cloned().collect();
            // The worker must tend these bridges, and they are out of the ring.
            let wanted = bridges.iter().filter(|name| !matches!(look(call, name), Lease::Unwanted(_)));
            wanted.for_each(|name| call.seam().judge_at(name, clock::now()));
            bridges
        }
    })
}

/// Asks for all bridges to be judged again: another process may have taken them out of the ring.
pub fn remind(shared: &Shared, database: &Database) {
    TENDED.with_borrow(|tended| {
        for name in tended.iter().flat_map(|tended| tended.bridges.keys()) {
            shared.post_at(database, name, clock::now());
        }
    });
}

/// Asks for the bridges whose leases a sweep has freed to be judged again, so that their locks are released.
pub fn look_again<'a>(call: &Call, changed: impl Iterator<Item = &'a Seat>) {
    TENDED.with_borrow(|tended| {
        let Some(tended) = tended else { return };
        for (name, _) in changed.filter(|(name, _)| tended.bridges.contains_key(name)) {
            call.seam().judge_at(name, clock::now());
        }
    });
}

fn look(call: &Call, name: &str) -> Lease {
    let dead = match Leases::open().probe(name, 0) {
        Probe::InFlight(_) => return Lease::Changing,
        Probe::Row(row) if Holders::of(call, row.session.into_iter()).living(row.session).is_some() => {
            return Lease::Held(row);
        }
        Probe::Row(row) => row.session,
        Probe::Absent => None,
    };
    if line::first_in_line(call, vec![name]).first.is_empty() { Lease::Unwanted(dead) } else { Lease::Awaited }
}

/// Gives the holder of a lease a new fence, because an old worker may have been at work since the grant. Returns `None`
/// while a transaction under the old fence is open, or if another transaction ends the session.
fn renew(call: &Call, name: &str, row: LeaseRow) -> Option<i64> {
    let session = row.session?;
    // To the end of this transaction no check of the old fence passes, as in a release.
    if !Guard::Fence(row.fence).try_lock(Mode::Exclusive) || !Guard::Grantee(session).try_lock(Mode::Shared) {
        return None;
    }
    let grantee = call.living(session).ok().flatten()?;
    let (resource, declared) = (name.to_owned(), Some((Kind::Bridge, 1)));
    let again = Candidate {
        resource,
        slot: 0,
        declared,
        row: Some(row),
        released: true,
        inherited: false,
        grantee,
        places: Vec::new(),
        gone: Rc::default(),
    };
    grant::grant(call, &Leases::open(), vec![again]).into_values().next().map(|grant| grant.fence)
}

impl Tended {
    /// Releases what is left of an extension that was dropped.
    fn come_home(&mut self, call: &Call) {
        if self.home != call.home.table {
            self.home = call.home.table;
            self.let_go(|_, _| true);
            self.bridges.clear();
        }
    }

    /// Tends one name. `side`: its other side, if the name is a bridge. Returns whether nothing is in the way of a
    /// grant.
    fn tend(&mut self, call: &Call, name: &str, side: Option<Side>) -> bool {
        if self.bridges.get(name).is_some_and(|known| Some(&known.side) != side.as_ref()) {
            self.let_go(|of, _| of == name);
            self.bridges.remove(name);
        }
        let Some(side) = side else { return true };
        let lease = look(call, name);
        if self.bridges.get(name).is_some_and(|known| known.held && known.is_waited_for()) {
            self.let_go(|_, bridge| bridge.side == side);
        }
        let new = Bridge { side, held: false, renewed: None, open: false, wait: 0, told: None };
        let bridge = self.bridges.entry(name.to_owned()).or_insert(new);
        if let Lease::Unwanted(dead) = lease {
            // The other side may take over from now on.
            call.taken_from(dead.as_slice());
            if bridge.leave(call, name) {
                self.bridges.remove(name);
            } else {
                call.seam().judge_at(name, clock::now() + bridge.wait);
            }
            return true;
        }
        bridge.take(call, name, lease);
        call.seam().judge_at(name, clock::now() + if bridge.open { limits::WATCH_BRIDGE_EVERY } else { bridge.wait });
        bridge.open
    }

    fn let_go(&mut self, which: impl Fn(&str, &Bridge) -> bool) {
        self.bridges
            .iter_mut()
            .filter(|(name, bridge)| which(name, bridge))
            .for_each(|(name, bridge)| bridge.let_go(name));
    }
}

impl Bridge {
    fn is_waited_for(&self) -> bool {
        matches!(self.side, Side::Lock(key) if advisory::is_waited_for(key))
    }

    /// Releases the lock. A row is left by [`Bridge::leave`], or when its time is over.
    fn let_go(&mut self, name: &str) {
        self.set_open(name, false);
        if let Side::Lock(key) = self.side
            && self.held
        {
            advisory::let_go(key);
        }
        (self.held, self.renewed) = (false, None);
    }

    /// Lets the other side take over. Returns false if the caller must try again.
    fn leave(&mut self, call: &Call, name: &str) -> bool {
        self.let_go(name);
        self.back_off();
        !matches!(&self.side, Side::Row(target) if row::leave(call, name, target))
    }

    fn set_open(&mut self, name: &str, open: bool) {
        if open != self.open {
            self.open = if open {
                advisory::open(name)
            } else {
                advisory::close(name);
                false
            };
        }
    }

    fn back_off(&mut self) {
        self.wait = (self.wait * 2).clamp(limits::FIRST_BRIDGE_WAIT, limits::LAST_BRIDGE_WAIT);
    }

    /// Takes the lock or the row. Opens the bridge once the lease is free, or has a newer fence that other sessions can
    /// see.
    fn take(&mut self, call: &Call, name: &str, lease: Lease) {
        let taken = match &self.side {
            Side::Lock(key) => {
                if !self.held && advisory::hold(*key) {
                    (self.held, self.wait) = (true, 0);
                }
                if self.held { None } else { Some(Taken::Busy) }
            }
            Side::Row(target) => Some(row::keep(call, name, target)),
        };
        let good = match &taken {
            // An open bridge has held its lock ever since it was opened.
            None => self.open || self.is_good(call, name, lease, None),
            Some(Taken::Ours(since)) => self.is_good(call, name, lease, Some(*since)),
            Some(_) => false,
        };
        self.set_open(name, good);
        match taken {
            _ if self.open => self.wait = 0,
            Some(Taken::Theirs(left)) => self.wait = left.clamp(limits::FIRST_BRIDGE_WAIT, limits::LAST_BRIDGE_WAIT),
            _ => self.back_off(),
        }
        debug_assert!(
            !self.open || self.held || matches!(self.side, Side::Row(_)),
            "checks pass while this process has the lock"
        );
        match taken {
            Some(Taken::Failed(why)) => self.tell(name, Some(why)),
            Some(Taken::Busy) => (),
            _ => self.tell(name, None),
        }
    }

    /// Returns whether the lease is free, or has a fence that was drawn after the lock or the row was taken. `since`:
    /// the number from the sequence of fences that was drawn when the row was taken.
    fn is_good(&mut self, call: &Call, name: &str, lease: Lease, since: Option<i64>) -> bool {
        match lease {
            Lease::Held(row) => match (since, self.renewed) {
                (Some(since), _) if since < row.fence => true,
                // A grant of an earlier transaction of this process is committed. This transaction's grant may still be
                // rolled back.
                (None, Some((fence, by))) if fence == row.fence => by != this_transaction(),
                _ => {
                    self.renewed = renew(call, name, row).map(|fence| (fence, this_transaction()));
                    false
                }
            },
            Lease::Awaited => true,
            Lease::Changing => self.open,
            Lease::Unwanted(_) => false,
        }
    }

    /// Writes to the log and the view why the row cannot be kept, once; or that it can be kept again.
    fn tell(&mut self, name: &str, trouble: Option<String>) {
        if self.told.as_ref() == Some(&trouble) || !side::note(name, trouble.as_deref()) {
            return;
        }
        let database = catalog::database_name();
        match (&trouble, &self.told) {
            (Some(why), _) => pgrx::log!(
                "eskit_lease: nobody new gets the lease of bridge \"{name}\" in database \"{database}\": {why}"
            ),
            (None, Some(Some(_))) => {
                pgrx::log!("eskit_lease: the row of bridge \"{name}\" in database \"{database}\" can be kept again");
            }
            (None, _) => (),
        }
        self.told = Some(trouble);
    }
}
