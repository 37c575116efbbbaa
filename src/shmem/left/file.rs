//! The file of sessions' remaining TTL: eight bytes for its format, a checksum, its origin, and the entries. Nothing
//! here knows PostgreSQL.

use crate::shmem::leftover::{Key, Left};
use std::fs::Metadata;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// The first bytes of the file. A file of another format is ignored.
const MAGIC: &[u8; 8] = b"eskleft1";
/// How many bytes of pg_control PostgreSQL uses.
pub const CONTROL: usize = 512;

/// The origin of a file. It tells a file from its copy, and one stop from another.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    control: &'a [u8; CONTROL],
    inode: u64,
    born: u64,
}

impl Origin<'_> {
    pub fn of<'a>(control: &'a [u8; CONTROL], file: &Metadata) -> Origin<'a> {
        // If the file system does not know the time, this is also zero for a copy.
        let born = file.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Origin { control, inode: file.ino(), born: born.map_or(0, |at| at.as_nanos() as u64) }
    }
}

fn checksum(body: &[u8]) -> [u8; 8] {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(body);
    hasher.finish().to_le_bytes()
}

/// Takes a number of N bytes off the front.
fn split<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

impl Left {
    pub(super) fn encode(&self, origin: Origin) -> Vec<u8> {
        let mut body = origin.control.to_vec();
        for number in [origin.inode, origin.born, self.silent] {
            body.extend(number.to_le_bytes());
        }
        for ((session, database, table), left) in &self.sessions {
            body.extend(session.to_le_bytes());
            body.extend(database.to_le_bytes());
            body.extend(table.to_le_bytes());
            body.extend(left.to_le_bytes());
        }
        [MAGIC.as_slice(), &checksum(&body), &body].concat()
    }

    /// Returns what a file says, or why the file does not count.
    pub(super) fn decode(mut bytes: &[u8], origin: Origin) -> Result<Left, &'static str> {
        if split(&mut bytes) != Some(*MAGIC) {
            return Err("is of another format");
        }
        let sum = split(&mut bytes);
        if sum != Some(checksum(bytes)) {
            return Err("is damaged");
        }
        if split(&mut bytes) != Some(*origin.control) {
            return Err("is of another stop than the last");
        }
        let mut number = || split(&mut bytes).map(u64::from_le_bytes);
        let found = (number(), number(), number());
        let (Some(inode), Some(born), Some(silent)) = found else { return Err("is damaged") };
        if (inode, born) != (origin.inode, origin.born) {
            return Err("is a copy");
        }
        let mut left = Left { sessions: Vec::with_capacity(bytes.len() / 32), silent };
        while !bytes.is_empty() {
            left.sessions.push(entry(&mut bytes).ok_or("is damaged")?);
        }
        left.sessions.sort_unstable();
        Ok(left)
    }
}

fn entry(bytes: &mut &[u8]) -> Option<(Key, u64)> {
    let session = u128::from_le_bytes(split(bytes)?);
    let (database, table) = (u32::from_le_bytes(split(bytes)?), u32::from_le_bytes(split(bytes)?));
    Some(((session, database, table), u64::from_le_bytes(split(bytes)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ORIGIN: Origin = Origin { control: &[7; CONTROL], inode: 11, born: 13 };

    fn left() -> impl Strategy<Value = Left> {
        let entries = prop::collection::btree_map(any::<Key>(), any::<u64>(), 0..20);
        (entries, any::<u64>()).prop_map(|(sessions, silent)| Left { sessions: sessions.into_iter().collect(), silent })
    }

    proptest! {
        #[test]
        fn comes_back_as_it_was(left in left()) {
            prop_assert_eq!(Left::decode(&left.encode(ORIGIN), ORIGIN), Ok(left));
        }

        #[test]
        fn what_is_damaged_does_not_count(left in left(), at in any::<prop::sample::Index>(), bits in 1u8..) {
            let mut bytes = left.encode(ORIGIN);
            let at = at.index(bytes.len());
            prop_assert!(Left::decode(&bytes[..at], ORIGIN).is_err());
            bytes[at] ^= bits;
            prop_assert!(Left::decode(&bytes, ORIGIN).is_err());
        }
    }

    #[test]
    fn what_is_of_elsewhere_does_not_count() {
        let bytes = Left::default().encode(ORIGIN);
        let another_stop = Origin { control: &[8; CONTROL], ..ORIGIN };
        assert_eq!(Left::decode(&bytes, another_stop), Err("is of another stop than the last"));
        assert_eq!(Left::decode(&bytes, Origin { inode: 12, ..ORIGIN }), Err("is a copy"));
        assert_eq!(Left::decode(&bytes, Origin { born: 12, ..ORIGIN }), Err("is a copy"));
        assert_eq!(Left::decode(b"eskleft0", ORIGIN), Err("is of another format"));
    }
}
