//! A lock of users: an advisory lock of one bigint, as `pg_advisory_lock` and its like take it.

use super::guard::{Life, Mode, Tag, as_transaction};

/// PostgreSQL's class for locks of one bigint. Locks of two integers have class 2.
const CLASS: u16 = 1;

/// A lock of one bigint; this extension only ever shares it.
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

    /// Shares the lock beyond transactions, until [`UserLock::let_go`]. Each call that takes the lock needs one
    /// `let_go`.
    pub fn try_hold(self) -> bool {
        self.tag().acquire(Mode::Shared, Life::Process, false)
    }

    pub fn let_go(self) {
        self.tag().release(Mode::Shared, Life::Process);
    }

    /// Returns whether another process waits for a lock that try_hold() has taken.
    pub fn is_waited_for(self) -> bool {
        self.tag().has_waiters(Mode::Shared, Life::Process)
    }
}
