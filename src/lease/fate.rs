//! The fate of a fence: whether its grant stands, and how it was lost if not. The row of a lease tells only the last
//! grant. So the fate of an older fence is told by what happened to the lease after that fence.

use super::history;
use super::row::{LeaseRow, Leases};
use crate::session;
use pgrx::Uuid;
use std::fmt::{Display, Formatter, Result};

/// The grant after a lost one.
pub struct Newer {
    pub fence: i64,
    /// The consumer that has the lease under it; `None` if it was released.
    pub holder: Option<String>,
    /// Whether the lease is in grace: its holder has released it, and may take it back.
    in_grace: bool,
}

impl Newer {
    fn of(row: &LeaseRow) -> Newer {
        let holder = row.session.and_then(session::row);
        let in_grace = holder.as_ref().is_some_and(|holder| holder.fencer.is_some());
        Newer { fence: row.fence, holder: holder.map(|holder| holder.consumer), in_grace }
    }
}

/// How a grant was lost.
pub enum Loss {
    Released,
    /// An administrator took the lease. The value is the grant that followed in the same step, if any.
    Forced(Option<Newer>),
    /// The lease was taken from its session, which had expired.
    Expired,
    /// A newer fence has been granted. The value is that grant, if the slot is known or the resource has one slot.
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

    /// Returns the consumer that has the lease now.
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
pub fn fate(resource: &str, slot: Option<i32>, fence: i64) -> Fate {
    let leases = Leases::open();
    let newer = slot.and_then(|slot| leases.row(resource, slot)).filter(|row| row.fence > fence);
    let forced = |row: &LeaseRow| {
        let since = leases.changed_at(resource, row.slot);
        since.is_some_and(|since| history::has_forced(resource, fence, since))
    };
    let superseded = |row: LeaseRow| {
        let newer = Some(Newer::of(&row));
        Fate::Lost(if forced(&row) { Loss::Forced(newer) } else { Loss::Superseded(newer) })
    };
    match (leases.by_fence(resource, fence), leases.row(resource, 0)) {
        (Some(row), _) => match row.session {
            Some(session) => Fate::Current { session, row },
            None if row.expired => Fate::Lost(Loss::Expired),
            None if forced(&row) => Fate::Lost(Loss::Forced(None)),
            None => Fate::Lost(Loss::Released),
        },
        (None, row) => match newer.or(row.filter(|row| row.fence > fence && !row.declared)) {
            Some(newer) => superseded(newer),
            None if leases.has_newer(resource, fence) => Fate::Lost(Loss::Superseded(None)),
            None => Fate::Lost(Loss::Unknown),
        },
    }
}
