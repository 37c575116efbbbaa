//! Names folded to numbers, the same for ever: users store these values, index by them and take advisory locks on them.

use crate::error::{Error, Result};
use crate::text::Text;
use pgrx::prelude::*;
use sha2::{Digest, Sha256};
use std::hash::Hasher;

#[pg_extern(schema = "eskit_lease", immutable, strict, parallel_safe)]
fn group_lock_key(group_name: Text) -> i64 {
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

/// SHA-256 of the name, its first eight bytes, big-endian, signed. Compatible with pyfly's group locks.
fn fold_sha256(name: &str) -> i64 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).fold(0i64, |key, byte| key << 8 | i64::from(*byte))
}

/// FNV-1a 64 of the name. Compatible with eskit's lock ids.
pub fn fnv1a(name: &str) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// Partition of a key, in `0..partitions`; `None` where there is no partition.
fn partition_of(key: &str, partitions: i32) -> Option<i32> {
    let partitions = u64::try_from(partitions).ok().filter(|count| *count > 0)?;
    i32::try_from(fnv1a(key) % partitions).ok()
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
    }
}
