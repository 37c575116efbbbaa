//! Refusals in the table of [`super::refusals`], by the database in which they were given.

use super::refusals::Refused;
use super::shared::Shared;
use crate::base::limits;
use crate::pg::catalog::Home;
use crate::pg::clock;

fn number(home: Home) -> u64 {
    u64::from(home.database) << 32 | u64::from(home.table)
}

impl Shared {
    /// Notes that a consumer was refused a resource, and which consumer held it, if the answer said so.
    pub fn refused(&self, home: Home, resource: &str, consumer: &str, holder: Option<&str>, reason: &str) {
        let refused = Refused { resource, consumer, holder: holder.unwrap_or_default(), reason, at: clock::now() };
        self.refusals.note(self.boot_id(), number(home), &refused);
    }

    /// Returns the refusals of the last minute, the latest first.
    pub fn refusals(&self, home: Home) -> Vec<Refused<String>> {
        self.refusals.since(number(home), clock::now().saturating_sub(limits::REFUSALS_KEPT))
    }
}
