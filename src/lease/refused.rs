//! What the view `refusals` shows: which session was refused what, and why. A note is made in shared memory alone, as a
//! refusal must write nothing; it stays whatever becomes of the transaction.

use super::answer::Answer;
use crate::base::limits;
use crate::pg::catalog::Home;
use crate::session::holders;
use crate::shmem::Shared;
use pgrx::Uuid;

/// Notes the refusals among the answers to a session, up to a bound. Does not note the answer `queued`: the view
/// `waiters` shows such a session.
pub fn note(shared: &Shared, home: Home, session: Uuid, resources: &[String], answers: &[Answer]) {
    let is_refused = |(_, answer): &(&String, &Answer)| !answer.is_granted() && answer.reason != "queued";
    let mut refused = resources.iter().zip(answers).filter(is_refused).take(limits::REFUSALS_OF_CALL).peekable();
    if refused.peek().is_none() {
        return;
    }
    let Some(consumer) = holders::name_at_once(session) else { return };
    for (resource, answer) in refused {
        shared.refused(home, resource, &consumer, answer.holder.as_deref(), answer.reason);
    }
}
