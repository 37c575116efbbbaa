//! Which partitions of a queue a claim looks at, and in which order.
//!
//! A session claims from the partitions of the group that it owns, and stops once it has what it asks for. So the order decides who is
//! served, and no rule that counts anything would be fair: a count of the backend is shared by all sessions and queues of a pooled
//! connection, and begins anew with each connection. The order is drawn by chance for each claim. Each partition that has items is
//! the first one as often as any other, whatever else the connection does, and nothing is to be remembered.

use super::Queue;
use crate::error::{Error, Result};
use crate::{claim, group};
use pgrx::Uuid;
use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    /// State of the generator, zero before it is first used.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// A number below a bound, drawn by chance: the generator is splitmix64, begun at random in each backend.
pub fn chance(below: usize) -> usize {
    let mut state = STATE.get();
    if state == 0 {
        // SAFETY: as many bytes as there is room for. Without randomness the clock and the process tell backends apart.
        unsafe {
            if !pg_sys::pg_strong_random((&raw mut state).cast(), size_of::<u64>()) {
                state =
                    pg_sys::GetCurrentTimestamp().cast_unsigned() ^ u64::from(pg_sys::MyProcPid.cast_unsigned()) << 32;
            }
        }
    }
    state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    STATE.set(state);
    let mut mixed = state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    // The product's upper half is even enough below any bound that fits into 32 bits.
    ((u128::from(mixed) * below as u128) >> 64) as usize
}

/// Shuffles a list as it goes through it, so that the elements after those that are asked for cost nothing.
pub fn shuffled<T: Copy>(mut list: Vec<T>) -> impl Iterator<Item = T> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = list.len() - at;
        if left == 0 {
            return None;
        }
        list.swap(at, at + chance(left));
        at += 1;
        Some(list[at - 1])
    })
}

/// The partitions that a session may claim items of.
pub fn of(queue: &Queue, session: Uuid) -> Result<Vec<i32>> {
    let Some(group) = &queue.group else { return Ok(vec![0]) };
    let owned: Vec<i32> = claim::of_session(group, session).into_iter().map(|row| row.slot).collect();
    if owned.is_empty() && !group::state::is_member(group, session) {
        return Err(Error::NotMember { group: group.clone() }.into());
    }
    Ok(shuffled(owned).collect())
}
