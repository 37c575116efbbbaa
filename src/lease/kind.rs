//! What a kind of declared name does beyond what every lease does.
//!
//! Groups and bridges stand on floors above this one. They implement [`Rules`], and lib.rs registers their rules when
//! the library is loaded. A name that is not declared has no rules.

use super::candidate::HandOver;
use super::declaration::Kind;
use super::row::LeaseRow;
use crate::base::error::Result;
use crate::call::Call;
use pgrx::Uuid;
use std::sync::OnceLock;

/// The rules of a kind.
pub trait Rules: Sync {
    /// For a lease that stands for a user's lock or row: holds that lock or row to the end of a transaction that has
    /// checked the fence, or refuses the check.
    fn cross(&self, _resource: &str, _fence: i64) -> Result<()> {
        Ok(())
    }

    /// Returns whether the holder should have released a slot by now. If so, no new transaction passes a check of its
    /// fence.
    fn is_overdue(&self, _call: &Call, _resource: &str, _slot: i32, _fence: i64) -> bool {
        false
    }

    /// Returns whether this process may grant a slot to a session that does not hold it.
    fn may_grant(&self, _resource: &str) -> bool {
        true
    }

    /// Judges a name whose next owners are not simply the first in line. `letting_go` returns whether this transaction
    /// releases a row.
    fn judge(
        &self,
        _: &Call,
        _resource: &str,
        _letting_go: &dyn Fn(&LeaseRow) -> bool,
        _: &mut HandOver,
    ) -> Result<()> {
        Ok(())
    }

    /// Hands over slots that a session releases in this transaction, if their next owners are not simply the first in
    /// line.
    fn hand_over(
        &self,
        _: &Call,
        _resource: &str,
        _from: Uuid,
        _rows: &[LeaseRow],
        _letting_go: &dyn Fn(&LeaseRow) -> bool,
        _: &mut HandOver,
    ) -> Result<()> {
        Ok(())
    }
}

/// The rules of a kind that has none of its own.
struct Plain;

impl Rules for Plain {}

static OF_GROUPS: OnceLock<&'static dyn Rules> = OnceLock::new();
static OF_BRIDGES: OnceLock<&'static dyn Rules> = OnceLock::new();

/// Registers the rules of the kinds that have their own. A process that the server forks inherits them.
pub fn register(of_groups: &'static dyn Rules, of_bridges: &'static dyn Rules) {
    OF_GROUPS.get_or_init(|| of_groups);
    OF_BRIDGES.get_or_init(|| of_bridges);
}

impl Kind {
    /// Returns the rules of this kind.
    pub fn rules(self) -> &'static dyn Rules {
        let of_kind = match self {
            Kind::Semaphore => return &Plain,
            Kind::Group => OF_GROUPS.get(),
            Kind::Bridge => OF_BRIDGES.get(),
        };
        let none = || pgrx::error!("eskit_lease has no rules of a {}: _PG_init registers them", self.name());
        of_kind.copied().unwrap_or_else(none)
    }
}
