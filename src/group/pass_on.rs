//! Passing on a membership to the session that has taken over the member.

use super::state::{self, STALE};
use super::{members, targets};
use crate::call::Call;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::session;
use pgrx::Uuid;
use pgrx::pg_sys::TEXTOID;

static UNBALANCED: Statement = Statement::writes(include_str!("../../sql/query/group/unbalanced.sql"), &[TEXTOID]);

/// Gives the membership of a session to its successor, or deletes it if the successor is a member in its own name. The
/// successor also becomes the target of the session's partitions. The caller has locked the group. Returns false if
/// another transaction is in the way.
pub fn pass_on(call: &Call, group: &str, old: Uuid, new: Uuid) -> bool {
    debug_assert_ne!(old, new, "no session succeeds itself");
    // A successor that is just ending has looked for its groups already, and would leave this membership behind.
    let stays = || Guard::Grantee(new).try_lock(Mode::Shared) && session::row(new).is_some();
    if !members::claim(group, new) || !stays() || !members::lock(group, &[old]).contains(&old) {
        return false;
    }
    if members::has_row(group, new) {
        // Two members become one, which then has too large a share.
        let unbalanced = state::change(group, |_| Some(vec![(STALE, Some(true.into()))]));
        call.written(unbalanced, &UNBALANCED, vec![Value::Text(group)]);
    }
    members::inherit(call, group, old, new);
    targets::inherit(call, group, old, new);
    true
}
