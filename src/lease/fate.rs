//! The fate of a fence: whether its grant stands, and how it was lost if not. The row of a lease tells only the last
//! grant. So the fate of an older fence is told by what happened to the lease after that fence.

use super::history;
use super::row::{LeaseRow, Leases};
use crate::call::Call;
use crate::session::holders::Holders;
use pgrx::Uuid;
use std::fmt::{Display, Formatter, Result};

/// The number of permits or partitions, those with the greatest fences, among which the one is looked for that an
/// administrator has taken from a fence.
const LOOKED_AT: usize = 64;

/// The last grant of a slot, if it is newer than the lost one.
pub struct Newer {
    pub fence: i64,
    /// The consumer that has the lease under it; `None` if it was released, or the session of that consumer has ended.
    pub holder: Option<String>,
    /// Whether the lease is in grace under that fence.
    in_grace: bool,
}

impl Newer {
    fn of(call: &Call, row: &LeaseRow) -> Newer {
        let holders = Holders::of(call, row.session.into_iter());
        let holder = holders.living(row.session);
        let in_grace = holder.is_some_and(|holder| holder.fencer.is_some());
        Newer { fence: row.fence, holder: holder.map(|holder| holder.consumer.clone()), in_grace }
    }
}

/// How a grant was lost.
pub enum Loss {
    Released,
    /// An administrator took the lease. The value is the slot's last grant, if a grant has followed.
    Forced(Option<Newer>),
    /// The lease was taken from its session, which had expired.
    Expired,
    /// A newer fence has been granted. The value is the slot's last grant, if the slot is known or the resource is an
    /// exclusive lease.
    Superseded(Option<Newer>),
    Unknown,
}

impl Loss {
    /// Returns the reason that `lease_renew` answers.
    pub fn reason(&self) -> &'static str {
        match self {
            Loss::Released => "released",
            Loss::Forced(_) => "forced",
            Loss::Expired => "expired",
            Loss::Superseded(Some(newer)) if newer.in_grace => "in_grace",
            Loss::Superseded(_) => "superseded",
            Loss::Unknown => "unknown",
        }
    }

    /// Returns the reason as versions up to 0.2.0 answered it.
    pub fn former_reason(&self) -> String {
        match (self, self.holder()) {
            (Loss::Forced(None), _) => Loss::Released.reason().to_owned(),
            (Loss::Forced(_) | Loss::Superseded(_), Some(holder)) => format!("superseded by {holder}"),
            (Loss::Forced(_) | Loss::Superseded(_), None) => "superseded".to_owned(),
            _ => self.reason().to_owned(),
        }
    }

    /// Returns the consumer that has the lease now, if a newer grant tells.
    pub fn holder(&self) -> Option<&str> {
        match self {
            Loss::Forced(Some(newer)) | Loss::Superseded(Some(newer)) => newer.holder.as_deref(),
            _ => None,
        }
    }
}

/// Says how a grant was lost, for people.
impl Display for Loss {
    fn fmt(&self, f: &mut Formatter) -> Result {
        match self {
            Loss::Released => write!(f, "The lease has been released."),
            Loss::Forced(newer) => {
                write!(f, "An administrator has taken the lease by force.")?;
                newer.iter().try_for_each(|newer| write!(f, " {newer}"))
            }
            Loss::Expired => write!(f, "Its session has ended."),
            Loss::Superseded(Some(newer)) => write!(f, "{newer}"),
            Loss::Superseded(None) => write!(f, "A newer fence has been granted."),
            Loss::Unknown => write!(f, "No such fence has been granted."),
        }
    }
}

impl Display for Newer {
    fn fmt(&self, f: &mut Formatter) -> Result {
        match &self.holder {
            Some(holder) if self.in_grace => {
                write!(f, "The lease is in grace of \"{holder}\" under fence {}.", self.fence)
            }
            Some(holder) => write!(f, "The lease is held by \"{holder}\" under fence {}.", self.fence),
            None => write!(f, "The last fence granted is {}.", self.fence),
        }
    }
}

/// The state of a fence.
pub enum Fate {
    /// The lease has this fence. Its session may be dead.
    Current {
        session: Uuid,
        row: LeaseRow,
    },
    Lost(Loss),
}

/// Returns the state of a fence. `slot` is its slot, if known.
pub fn fate(call: &Call, resource: &str, slot: Option<i32>, fence: i64) -> Fate {
    let leases = Leases::open();
    let newer = slot.and_then(|slot| leases.row(resource, slot)).filter(|row| row.fence > fence);
    let is_forced = |row: LeaseRow| forced_among(&leases, resource, fence, &[row]).is_some();
    match (leases.by_fence(resource, fence), leases.row(resource, 0)) {
        (Some(row), _) => match row.session {
            Some(session) => Fate::Current { session, row },
            None if row.expired => Fate::Lost(Loss::Expired),
            None if is_forced(row) => Fate::Lost(Loss::Forced(None)),
            None => Fate::Lost(Loss::Released),
        },
        (None, row) => match newer.or(row.filter(|row| row.fence > fence && !row.declared)) {
            Some(row) => {
                let newer = Some(Newer::of(call, &row));
                Fate::Lost(if is_forced(row) { Loss::Forced(newer) } else { Loss::Superseded(newer) })
            }
            None => {
                let newer = leases.newer(resource, fence);
                match forced_among(&leases, resource, fence, &newer[..newer.len().min(LOOKED_AT)]) {
                    Some(row) => Fate::Lost(Loss::Forced(Some(Newer::of(call, &row)))),
                    None if newer.is_empty() => Fate::Lost(Loss::Unknown),
                    None => Fate::Lost(Loss::Superseded(None)),
                }
            }
        },
    }
}

/// Returns the one of `rows` that was freed or given on when an administrator took it from this fence, in the same
/// step.
fn forced_among(leases: &Leases, resource: &str, fence: i64, rows: &[LeaseRow]) -> Option<LeaseRow> {
    let since = |row: &LeaseRow| Some((row.slot, leases.changed_at(resource, row.slot)?));
    let slot = history::forced_slot(resource, fence, rows.iter().filter_map(since).collect())?;
    rows.iter().find(|row| row.slot == slot).copied()
}
