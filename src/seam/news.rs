//! Notes about the rows of outboxes.

use super::effect::{Effect, Memory};
use crate::pg::lock;

/// The transaction has drawn positions. `xid`: its id, with its epoch.
pub struct News {
    pub xid: i64,
}

impl Effect for News {
    /// The transaction still has its locks.
    fn at_commit(&self, memory: &Memory) -> bool {
        memory.shared.tell_news(memory.database, self.xid, lock::writes);
        false
    }

    /// PostgreSQL has given the locks to the prepared transaction, so the news are for every watched table.
    fn at_prepare(&self, memory: &Memory) {
        memory.shared.tell_news(memory.database, self.xid, |_| true);
    }
}
