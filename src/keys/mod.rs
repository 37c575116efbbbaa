//! Names folded to numbers that never change: users store these values, index by them, and take advisory locks on them.

mod fold;

pub use fold::{fnv1a, fold_sha256, partition_of};

use crate::base::error::{Error, Result};
use crate::pg::text::Text;
use pgrx::Uuid;
use pgrx::prelude::*;

#[pg_extern(schema = "eskit_lease", immutable, strict, parallel_safe)]
pub(crate) fn group_lock_key(group_name: Text) -> i64 {
    fold_sha256(&group_name)
}

#[pg_extern(schema = "eskit_lease", immutable, strict, parallel_safe)]
fn advisory_lock_id(name: Text) -> i64 {
    fnv1a(&name).cast_signed()
}

#[pg_extern(schema = "eskit_lease", immutable, strict, parallel_safe)]
fn partition_for(key: Text, partitions: i32) -> Result<i32> {
    Ok(partition_of(&key, partitions).ok_or(Error::Partitions(partitions))?)
}

#[pg_extern(schema = "eskit_lease", immutable, strict, parallel_safe)]
fn partition_of_uuid(id: Uuid, partitions: i32) -> Result<i32> {
    let id = u128::from_be_bytes(*id.as_bytes());
    Ok(range_of(id, partitions).ok_or(Error::Partitions(partitions))?)
}

/// Returns in which of `partitions` equal ranges of all uuids `id` lies: id * partitions / 2^128, rounded down. It
/// computes by halves, so that nothing overflows.
fn range_of(id: u128, partitions: i32) -> Option<i32> {
    let partitions = u128::try_from(partitions).ok().filter(|count| *count > 0)?;
    let (high, low) = ((id >> 64) * partitions, (id & u128::from(u64::MAX)) * partitions);
    i32::try_from((high + (low >> 64)) >> 64).ok()
}

/// How many stripes there are: far more than calls that make new names at one time. So two names seldom share a stripe
/// by accident.
const STRIPES: u64 = 1 << 16;

pub fn stripe(resource: &str, slot: i32) -> u16 {
    (fnv1a(resource).wrapping_add(u64::from(slot.cast_unsigned())) % STRIPES) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors() {
        assert_eq!(fold_sha256("default"), 4010717984327297149);
        assert_eq!(fold_sha256("flydocs-workers"), -6664241359945616607);
        assert_eq!(fold_sha256("café"), -8858723660289998967);
        assert_eq!(fnv1a("sub:orders") as i64, -1214547986480760684);
        assert_eq!(fnv1a("exec:order-123") as i64, 2159575127614500731);
        assert_eq!(fnv1a("") as i64, -3750763034362895579);
    }

    #[test]
    fn ranges_of_uuids() {
        let eighth = 1u128 << 125;
        for (start, range) in (0..8).map(|i| eighth * i).zip(0..) {
            assert_eq!(range_of(start, 8), Some(range));
            assert_eq!(range_of(start + (eighth - 1), 8), Some(range));
        }
        for partitions in [1, 2, 3, 7, 32_768, i32::MAX] {
            assert_eq!(range_of(0, partitions), Some(0));
            assert_eq!(range_of(u128::MAX, partitions), Some(partitions - 1));
        }
        // A third of all uuids: the low half decides.
        assert_eq!(range_of(u128::MAX / 3, 3), Some(0));
        assert_eq!(range_of(u128::MAX / 3 + 1, 3), Some(1));
    }

    proptest! {
        #[test]
        fn a_partition_is_in_range(key in ".*", partitions in 1i32..) {
            let partition = partition_of(&key, partitions);
            prop_assert!(partition.is_some_and(|p| (0..partitions).contains(&p)));
        }

        #[test]
        fn no_partitions_no_partition(key in ".*", partitions in ..=0i32) {
            prop_assert_eq!(partition_of(&key, partitions), None);
        }

        #[test]
        fn ranges_are_in_the_order_of_uuids(a: u128, b: u128, partitions in 1i32..) {
            let (low, high) = (range_of(a.min(b), partitions), range_of(a.max(b), partitions));
            prop_assert!(low.is_some_and(|p| p >= 0) && low <= high && high.is_some_and(|p| p < partitions));
        }

        /// Each range begins where it should. So no range is longer than another by more than one uuid.
        #[test]
        fn ranges_are_equal((partitions, range) in (2i32..).prop_flat_map(|n| (Just(n), 1..n))) {
            // 2^128 / partitions, and the remainder
            let (n, p) = (partitions as u128, range as u128);
            let (length, left) = ((u128::MAX - n + 1) / n + 1, (u128::MAX - n + 1) % n);
            let start = |p: u128| p * length + (p * left).div_ceil(n);
            prop_assert_eq!(range_of(start(p), partitions), Some(range));
            prop_assert_eq!(range_of(start(p) - 1, partitions), Some(range - 1));
            prop_assert!((length..=length + 1).contains(&(start(p) - start(p - 1))));
        }

        #[test]
        fn no_partitions_no_range(id: u128, partitions in ..=0i32) {
            prop_assert_eq!(range_of(id, partitions), None);
        }
    }
}
