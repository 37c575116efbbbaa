//! A slot has its next session while a call still refers to it for the former one: nothing that the call does affects
//! the next session.

#[pgrx::pg_schema]
mod tests {
    use crate::call::{Call, enter};
    use crate::pg::clock;
    use crate::shmem::Shared;
    use crate::shmem::hunger::Food;
    use crate::shmem::map::Opening;
    use crate::shmem::slots::SlotRef;
    use crate::shmem::word::State;
    use pgrx::pg_sys;
    use pgrx::prelude::*;

    const HOUR: u64 = 3_600_000_000;

    fn call() -> Call {
        enter().and_then(Call::open).unwrap_or_else(|report| pgrx::error!("{}", report.message()))
    }

    fn random() -> pgrx::Uuid {
        let mut bytes = [0u8; 16];
        // SAFETY: writes 16 bytes
        unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), bytes.len()) };
        pgrx::Uuid::from_bytes(bytes)
    }

    /// Enters a session that has no row, which this transaction protects from being swept.
    fn open(call: &Call, private: bool) -> SlotRef {
        // SAFETY: in a transaction
        let opened_by = unsafe { pg_sys::GetTopTransactionId() }.into_inner();
        let deadline = clock::now() + HOUR;
        let (session, role, ttl_ms) = (random(), 10, 3_600_000);
        let opening =
            Opening { session, role, ttl_ms, private, deadline, opened_by, unproven: 0, frozen: false, most: None };
        call.shared.enter(call.home, opening).unwrap_or_else(|report| pgrx::error!("{}", report.message()))
    }

    fn end(call: &Call, at: SlotRef) {
        call.shared.end(at, true);
        call.shared.reclaim(clock::now());
    }

    /// Gives the slot of an ended session to another session. Other tests may take it first, and give it back.
    fn reuse(call: &Call, of: SlotRef) -> SlotRef {
        let mut others = Vec::new();
        let next = loop {
            let at = open(call, false);
            if at.index == of.index {
                break at;
            }
            others.push(at);
            assert!(others.len() < 1_000, "the slot is not given to another session");
        };
        others.into_iter().for_each(|at| call.shared.erase(at));
        next
    }

    /// Returns whether a session hears of an item for which enough sleeping sessions were already woken. A session that
    /// sleeps itself does not.
    fn hears_without_sleeping(call: &Call, at: SlotRef) -> bool {
        const QUEUE: i32 = 7;
        call.shared.hunger(call.database, at, QUEUE, None, None);
        let revision = || call.shared.look(at).map(|now| now.revision);
        let before = revision();
        call.shared.feed(call.database, QUEUE, Food::of(0, None));
        revision() != before
    }

    type Write = (&'static str, fn(&Shared, SlotRef));

    #[pg_test]
    fn what_is_said_of_a_former_session_is_not_done_to_the_next() {
        const WRITES: [Write; 12] = [
            ("cap", |shared, at| shared.cap(at, 1)),
            ("bump", |shared, at| shared.bump(at)),
            ("freeze", |shared, at| shared.freeze(at)),
            ("thaw", |shared, at| _ = shared.thaw(at)),
            ("end", |shared, at| shared.end(at, true)),
            ("end with rows left", |shared, at| shared.end(at, false)),
            ("erase", |shared, at| shared.erase(at)),
            ("beat", |shared, at| _ = shared.beat(at)),
            ("attach", |shared, at| shared.attach(at, 0)),
            ("detach", |shared, at| _ = shared.detach(at)),
            ("unproven", |shared, at| shared.unproven(at)),
            ("unproven while prepared", |shared, at| shared.unproven_while_prepared(at)),
        ];
        let call = call();
        let shared = call.shared;
        let former = open(&call, true);
        assert!(shared.is_private(former));
        end(&call, former);
        let next = reuse(&call, former);
        let stands = || shared.look(next).map(|now| (now.state, now.until, now.revision));
        let before = stands();
        assert_eq!(before.map(|(state, ..)| state), Some(State::Alive));
        for (what, write) in WRITES {
            write(shared, former);
            assert_eq!(stands(), before, "{what}");
            assert!(!shared.is_promised(next) && shared.attached_pid(next).is_none(), "{what}");
        }
        assert!(shared.look(former).is_none() && shared.role(former).is_none() && shared.beat(former).is_none());
        assert!(!shared.is_private(former) && !shared.is_private(next));
        shared.erase(next);
    }

    #[pg_test]
    fn a_call_that_slept_for_a_former_session_does_not_count_for_the_next() {
        let call = call();
        let shared = call.shared;
        let former = open(&call, false);
        shared.sleeps(former, true);
        assert!(!hears_without_sleeping(&call, former));
        end(&call, former);
        let next = reuse(&call, former);
        assert!(hears_without_sleeping(&call, next), "it does not inherit a sleeping call");
        shared.sleeps(next, true);
        shared.sleeps(former, false);
        assert!(!hears_without_sleeping(&call, next), "it sleeps still");
        shared.sleeps(former, true);
        shared.sleeps(next, false);
        assert!(hears_without_sleeping(&call, next), "it sleeps no more");
        shared.erase(next);
    }

    #[pg_test]
    fn hunger_of_a_former_session_is_not_that_of_the_next() {
        const QUEUE: i32 = 8;
        let call = call();
        let (shared, database) = (call.shared, call.database);
        let former = open(&call, false);
        shared.hunger(database, former, QUEUE, None, None);
        end(&call, former);
        let next = reuse(&call, former);
        let revision = || shared.look(next).map(|now| now.revision);
        let before = revision();
        shared.hunger(database, former, QUEUE, None, Some(0));
        shared.feed(database, QUEUE, Food::ALL);
        shared.feed_due(database, clock::now());
        assert_eq!(revision(), before, "it is not hungry");
        shared.hunger(database, next, QUEUE, None, None);
        shared.feed(database, QUEUE, Food::ALL);
        assert_ne!(revision(), before, "it is found when it is");
        shared.erase(next);
    }
}
