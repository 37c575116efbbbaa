//! A lock of users': an advisory lock of one bigint, as `pg_advisory_lock` and its like take it.

use super::guard::{Life, Mode, Tag, as_transaction};

/// What PostgreSQL has for locks of one bigint, where those of two integers have 2.
const CLASS: u16 = 1;

/// Such a lock, which is only ever shared here.
#[derive(Clone, Copy)]
pub struct UserLock(pub i64);

impl UserLock {
    fn tag(self) -> Tag {
        Tag::new(CLASS, self.0.cast_unsigned())
    }

    /// Shares the lock to the end of the (sub)transaction, unless another process has it exclusively or waits for that.
    pub fn try_share(self) -> bool {
        as_transaction(|| self.tag().acquire(Mode::Shared, Life::Transaction, false))
    }

    /// The same beyond transactions, until [`UserLock::let_go`]; once for each time.
    pub fn try_hold(self) -> bool {
        self.tag().acquire(Mode::Shared, Life::Process, false)
    }

    pub fn let_go(self) {
        self.tag().release(Mode::Shared, Life::Process);
    }

    /// Returns whether another process waits for a lock that try_hold() has.
    pub fn is_waited_for(self) -> bool {
        self.tag().has_waiters(Mode::Shared, Life::Process)
    }
}
