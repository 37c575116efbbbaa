//! The latest refusals of leases, for a minute: which consumer asked for which name, and what it was told. They answer
//! "why was it refused?", and nothing else reads them.
//!
//! A refusal must cost next to nothing, so it takes no lock and waits for no process. The table is small. A hash of the
//! name and of the asker leads to a few entries, one of which the refusal takes: the one that it had before, or the
//! oldest. So a consumer that asks again and again has one entry, and a crowd of others takes the oldest ones first.
//!
//! An entry has a version, which is odd while a process writes. A process that finds another one writing drops its own
//! refusal. A reader whose entry has changed meanwhile reads it again. If a process is stopped while it writes, its
//! entry tells nothing until the process goes on. Nothing here knows PostgreSQL.

use crate::base::limits;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How many refusals are kept.
pub const REFUSALS: usize = 512;
/// How many entries a hash leads to.
const WAYS: usize = 4;
/// How many texts a refusal has, and how long the last of them can be.
const TEXTS: usize = 4;
const LONGEST_REASON: usize = 16;
const BYTES: usize = (TEXTS - 1) * limits::MAX_NAME + LONGEST_REASON;
const WORD: usize = size_of::<u64>();
const WORDS: usize = BYTES.div_ceil(WORD);
/// How often a reader tries to read an entry that is being written.
const TRIES: usize = 100;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<T> {
    pub resource: T,
    pub consumer: T,
    /// The consumer that held the resource; empty if the answer did not name it.
    pub holder: T,
    pub reason: T,
    /// When, by the clock of shared memory.
    pub at: u64,
}

/// An entry. It is valid when all its bytes are zero.
#[repr(C)]
pub struct Entry {
    version: AtomicU64,
    /// The hash of the asker, of the name that was asked for, and of `home`; zero in a free entry.
    key: AtomicU64,
    at: AtomicU64,
    /// The database and the table of sessions.
    home: AtomicU64,
    /// The lengths of the texts.
    lengths: AtomicU64,
    /// The texts, one after another.
    text: [AtomicU64; WORDS],
}

/// What an entry has, as a reader finds it.
struct Found {
    key: u64,
    home: u64,
    refused: Refused<String>,
}

impl Entry {
    /// Writes the entry, unless another process writes it.
    fn write(&self, key: u64, home: u64, at: u64, texts: [&str; TEXTS]) {
        let version = self.version.load(Ordering::Relaxed);
        let is_mine =
            |version| self.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if version % 2 == 1 || !is_mine(version) {
            return;
        }
        fence(Ordering::Release);
        self.key.store(key, Ordering::Relaxed);
        self.home.store(home, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
        let (mut bytes, mut len, mut lengths) = ([0; WORDS * WORD], 0, [0; TEXTS]);
        for (n, text) in texts.iter().enumerate() {
            let most = if n == TEXTS - 1 { LONGEST_REASON } else { limits::MAX_NAME };
            let text = &text.as_bytes()[..text.len().min(most)];
            bytes[len..len + text.len()].copy_from_slice(text);
            len += text.len();
            lengths[n] = text.len() as u16;
        }
        let lengths = lengths.iter().rev().fold(0, |all, one| all << u16::BITS | u64::from(*one));
        self.lengths.store(lengths, Ordering::Relaxed);
        for (word, bytes) in self.text.iter().zip(bytes[..len].chunks(WORD)) {
            let mut whole = [0; WORD];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Reads the entry; `None` if it is free, or is being written all the time.
    fn read(&self) -> Option<Found> {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Acquire);
            if version % 2 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let key = self.key.load(Ordering::Relaxed);
            if key == 0 {
                return None;
            }
            let (home, at) = (self.home.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
            let lengths = self.lengths.load(Ordering::Relaxed);
            let mut bytes = Vec::with_capacity(WORDS * WORD);
            bytes.extend(self.text.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) != version {
                continue;
            }
            let mut start = 0;
            let [resource, consumer, holder, reason] = [0, 1, 2, 3].map(|n| {
                let end = start + usize::from((lengths >> (n * u16::BITS)) as u16);
                let text = String::from_utf8_lossy(&bytes[start..end]).into_owned();
                start = end;
                text
            });
            return Some(Found { key, home, refused: Refused { resource, consumer, holder, reason, at } });
        }
        None
    }
}

/// The table of all refusals.
#[derive(Clone, Copy)]
pub struct Table(pub &'static [Entry]);

impl Table {
    /// Notes a refusal. `salt`: a number that no user knows; without it a user could choose names that all fall on one
    /// entry.
    pub fn note(self, salt: i64, home: u64, refused: &Refused<&str>) {
        let Refused { resource, consumer, holder, reason, at } = *refused;
        let mut hasher = DefaultHasher::new();
        (salt, home, resource, consumer).hash(&mut hasher);
        let key = hasher.finish() | 1;
        let sets = self.0.len() / WAYS;
        let first = (key >> 1) as usize % sets * WAYS;
        let set = &self.0[first..first + WAYS];
        let own = set.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key);
        let oldest = || set.iter().min_by_key(|entry| entry.at.load(Ordering::Relaxed));
        if let Some(entry) = own.or_else(oldest) {
            entry.write(key, home, at, [resource, consumer, holder, reason]);
        }
    }

    /// Returns the refusals since a time, the latest first; of one asker and one name, only the latest.
    pub fn since(self, home: u64, at: u64) -> Vec<Refused<String>> {
        let mut found: Vec<Found> = self.0.iter().filter_map(Entry::read).collect();
        found.retain(|found| found.home == home && found.refused.at >= at);
        found.sort_by_key(|found| (found.key, std::cmp::Reverse(found.refused.at)));
        found.dedup_by_key(|found| found.key);
        found.sort_by_key(|found| std::cmp::Reverse(found.refused.at));
        found.into_iter().map(|found| found.refused).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn table(entries: usize) -> Table {
        // SAFETY: an entry is valid when all its bytes are zero
        let entry = || unsafe { std::mem::zeroed::<Entry>() };
        Table(Box::leak(std::iter::repeat_with(entry).take(entries).collect::<Box<[Entry]>>()))
    }

    fn refused<'a>(resource: &'a str, consumer: &'a str, at: u64) -> Refused<&'a str> {
        Refused { resource, consumer, holder: "the holder", reason: "held", at }
    }

    fn found(table: Table, home: u64, at: u64) -> Vec<(String, String, u64)> {
        table.since(home, at).into_iter().map(|refused| (refused.consumer, refused.reason, refused.at)).collect()
    }

    #[test]
    fn each_asker_has_its_last_refusal() {
        let table = table(64);
        table.note(7, 1, &refused("r", "a", 1));
        table.note(7, 1, &refused("r", "b", 2));
        table.note(7, 1, &Refused { reason: "busy", holder: "", ..refused("r", "a", 3) });
        table.note(7, 2, &refused("r", "another database", 3));
        let known = |consumer: &str, reason: &str, at| (consumer.to_owned(), reason.to_owned(), at);
        assert_eq!(found(table, 1, 0), [known("a", "busy", 3), known("b", "held", 2)]);
        assert_eq!(found(table, 1, 3), [known("a", "busy", 3)]);
        assert!(found(table, 3, 0).is_empty());
    }

    #[test]
    fn the_oldest_make_room() {
        let table = table(WAYS);
        for at in 1..=10 {
            table.note(7, 1, &refused("r", &format!("consumer {at}"), at));
        }
        assert_eq!(found(table, 1, 0).into_iter().map(|(.., at)| at).collect::<Vec<_>>(), [10, 9, 8, 7]);
    }

    #[test]
    fn names_of_all_lengths_come_back() {
        let table = table(64);
        for length in 0..=limits::MAX_NAME {
            let (long, home) = ("x".repeat(length), length as u64);
            let whole =
                Refused { resource: long.as_str(), consumer: &long, holder: &long, reason: "sessions_full", at: 1 };
            table.note(7, home, &whole);
            let found = table.since(home, 0);
            assert_eq!(found.len(), 1);
            let Refused { resource, consumer, holder, reason, at } = &found[0];
            let [resource, consumer, holder, reason] = [resource, consumer, holder, reason].map(String::as_str);
            assert_eq!(whole, Refused { resource, consumer, holder, reason, at: *at });
        }
    }

    /// Threads write the same few entries with texts that belong together; a reader never finds parts of two.
    #[test]
    fn what_is_read_was_written_at_one_time() {
        let (table, ended) = (table(WAYS), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for letter in ["a", "b", "c"] {
                let ended = &ended;
                scope.spawn(move || {
                    for at in (1..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                        let text = letter.repeat(1 + at as usize % limits::MAX_NAME);
                        let (resource, holder) = (text.as_str(), text.as_str());
                        table.note(7, 1, &Refused { resource, consumer: "the asker", holder, reason: letter, at });
                    }
                });
            }
            let mut seen = 0;
            while seen < 20_000 {
                for Refused { resource, holder, reason, at, .. } in table.since(1, 1) {
                    assert_eq!((resource.len(), &resource), (1 + at as usize % limits::MAX_NAME, &holder));
                    assert!(resource.chars().all(|letter| reason == letter.to_string()));
                    seen += 1;
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
