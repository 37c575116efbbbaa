//! Consumer groups: any number of members share the partitions of a group, and the server decides which member owns
//! which.
//!
//! A partition is a slot of the resource that has the group's name. Its ownership, fence, expiry and hand-over are
//! those of a lease. A group adds the choice of the next owner: not the first in line, but the partition's **target**.
//! [`assign`] computes the targets from the members and the present owners. [`judge`] brings owners and targets
//! together:
//!
//! | owner                    | target                | what happens                                                   |
//! |--------------------------|-----------------------|----------------------------------------------------------------|
//! | none, dead, letting go   | a living member       | granted, under a new fence                                     |
//! | living                   | the owner             | the owner goes on; after a promotion it gets a new fence       |
//! | living                   | another member        | revoking: told, until it releases or the rebalance timeout     |
//! | living, but has left     | any                   | taken back: it was granted while the member left               |
//! | living, draining | any | revoking, without a deadline unless the group is resized |
//!
//! **Who judges.** A call that changes something (join, leave, release, close), a member that asks for its assignment,
//! and the worker. Only a transaction that has locked the group's row writes targets. The lock is tried and never
//! waited for: a transaction that does not get it leaves the work to the worker. So joins never wait for each other and
//! never deadlock.
//!
//! * A transaction block may stay open, so it leaves the group to the worker. If the worker is off or late, the block
//!   judges at its commit, even if it only asks for an assignment.
//! * A DO statement and a procedure may run for long, and judge at their commit. (A user's function in a client's own
//!   statement judges at once.)
//! * A hand-over needs no such lock. Two transactions that judge by different targets may give a partition to a member
//!   that must give it back again. They never give it to two members.
//!
//! A release does not judge the group, because that takes longer in a larger group. It looks up the targets of its own
//! partitions and gives the partitions to them ([`serve::hand_over`]). The worker takes care of partitions without a
//! living target.
//!
//! **Take-over.** A member that was taken over keeps its membership until its successor has a row in the group. The
//! take-over writes that row at its commit. If another transaction is in the way, the sweep or the next rebalance
//! writes it. Meanwhile a reader of the group finds the successor instead of its predecessor, as a member and as a
//! target ([`state::State::heirs`]). So no partition of the predecessor goes to another member.
//!
//! A change of targets is a new **generation**. The owners concerned learn of it by their revision, as of every change.
//!
//! Files, low to high: assign, bound, cursor, members, targets, state, pass_on, plan, rebalance, serve, judge, ending,
//! mod, verbs.

mod assign;
pub mod bound;
pub mod cursor;
mod ending;
mod judge;
mod members;
mod pass_on;
mod plan;
mod rebalance;
mod serve;
mod state;
mod targets;
mod verbs;

pub use ending::{inherit, inherit_at_commit, leave_all};
pub use members::{is_member, note_groups};

use crate::base::error::Result;
use crate::call::Call;
use crate::lease::candidate::HandOver;
use crate::lease::kind::Rules;
use crate::lease::row::LeaseRow;
use crate::pg::spi::{Statement, Value};
use pgrx::Uuid;
use pgrx::pg_sys::{INT4OID, TEXTOID};

static PAGE: Statement = Statement::reads(include_str!("../../sql/query/group/page.sql"), &[TEXTOID, INT4OID]);

/// The rules of names that are groups.
pub struct OfGroups;

impl Rules for OfGroups {
    fn is_overdue(&self, call: &Call, group: &str, partition: i32, fence: i64) -> bool {
        state::is_overdue(call, group, partition, fence)
    }

    fn judge(
        &self,
        call: &Call,
        group: &str,
        letting_go: &dyn Fn(&LeaseRow) -> bool,
        result: &mut HandOver,
    ) -> Result<()> {
        judge::judge(call, group, None, letting_go, result).map(drop)
    }

    fn hand_over(
        &self,
        call: &Call,
        group: &str,
        from: Uuid,
        rows: &[LeaseRow],
        letting_go: &dyn Fn(&LeaseRow) -> bool,
        result: &mut HandOver,
    ) -> Result<()> {
        judge::hand_over(call, group, from, rows, letting_go, result)
    }
}

/// Returns up to `most` names of groups that sort after `after`, in order.
pub fn page(call: &Call, after: &str, most: usize) -> Vec<String> {
    call.db().run(&PAGE, vec![Value::Text(after), Value::Int(most as i32)], |row| row.text(1))
}
