//! The folds by themselves, without a server: bench/keys compiles this file, too.

use sha2::{Digest, Sha256};
use std::hash::Hasher;

/// Returns the first eight bytes of the name's SHA-256, big-endian, signed. Compatible with pyfly's group locks.
pub fn fold_sha256(name: &str) -> i64 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).fold(0i64, |key, byte| key << 8 | i64::from(*byte))
}

/// Returns FNV-1a 64 of the name. Compatible with eskit's lock ids.
pub fn fnv1a(name: &str) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// Returns the partition of a key, in `0..partitions`; `None` if there is no partition.
pub fn partition_of(key: &str, partitions: i32) -> Option<i32> {
    let partitions = u64::try_from(partitions).ok().filter(|count| *count > 0)?;
    i32::try_from(fnv1a(key) % partitions).ok()
}
