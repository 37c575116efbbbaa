//! The entries of the dirty ring, and the chains that find an entry.
//!
//! The entries are an array without gaps: when one is taken out of the middle, the last one moves to its index. A hash
//! of database, kind and name leads to an entry that is already there: `heads` has the first entry of each chain, and
//! each entry the next one. One lock guards everything; the chains make its holders quick. Nothing here knows
//! PostgreSQL.
//!
//! There is one entry for each name and kind (see [`Entry::changed`]). If a second one is put in, the earlier time
//! stands. If both are retries, the one with the longer wait stands: another reason to retry makes the retry no sooner.

use crate::base::limits;
use fnv::FnvHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    /// When to judge the resource.
    pub due: u64,
    /// Since when the resource must be judged; a time to come, if the resource was put in for that time.
    pub since: u64,
    /// The next entry of the chain plus one.
    next: u32,
    pub database: u32,
    /// How long the last wait was, if this is a retry; else zero.
    pub backoff_ms: u32,
    /// The slot whose owner changed, so that listeners are told; below 0 for none. ITEMS: the name is that of a queue
    /// of work items.
    pub changed: i32,
    length: u8,
    name: [u8; limits::MAX_NAME],
}

impl Entry {
    /// The name is cut at the longest allowed length.
    pub fn new(database: u32, resource: &str, changed: i32, due: u64, backoff_ms: u32) -> Entry {
        let bytes = resource.as_bytes();
        let length = bytes.len().min(limits::MAX_NAME);
        let mut name = [0; limits::MAX_NAME];
        name[..length].copy_from_slice(&bytes[..length]);
        Entry { due, since: 0, next: 0, database, backoff_ms, changed, length: length as u8, name }
    }

    pub fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.length)]
    }

    fn key(&self) -> (u32, i32, &[u8]) {
        (self.database, self.changed, self.name())
    }
}

/// Returns how many chains a ring with room for `entries` entries has.
pub fn chains(entries: usize) -> usize {
    entries.next_power_of_two()
}

/// The ring, for a process that holds its lock exclusively.
pub struct Ring<'a> {
    /// All entries for which the ring has room.
    pub entries: &'a mut [Entry],
    /// The first entry of each chain plus one.
    pub heads: &'a mut [u32],
    /// How many entries are in use.
    pub len: &'a AtomicU32,
}

impl Ring<'_> {
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    fn chain(&self, entry: &Entry) -> usize {
        let mut hasher = FnvHasher::default();
        entry.key().hash(&mut hasher);
        // The high bits of this hash are better than its low ones.
        let hash = hasher.finish();
        (hash ^ hash >> 32) as usize % self.heads.len()
    }

    fn find(&self, entry: &Entry) -> Option<usize> {
        let mut at = self.heads[self.chain(entry)];
        while at != 0 {
            let known = &self.entries[at as usize - 1];
            if known.key() == entry.key() {
                return Some(at as usize - 1);
            }
            at = known.next;
        }
        None
    }

    /// Puts an entry in, or merges it with the one of the same name and kind. Returns whether the entry is new or due
    /// sooner; `None` if there is no room.
    pub fn put(&mut self, mut entry: Entry) -> Option<bool> {
        if let Some(at) = self.find(&entry) {
            let known = &mut self.entries[at];
            known.since = known.since.min(entry.since);
            let is_tried_again = entry.backoff_ms > 0 && known.backoff_ms > 0;
            let is_sooner = !is_tried_again && entry.due < known.due;
            if is_sooner || is_tried_again && entry.backoff_ms > known.backoff_ms {
                (known.due, known.backoff_ms) = (entry.due, entry.backoff_ms);
            }
            return Some(is_sooner);
        }
        let (at, chain) = (self.len(), self.chain(&entry));
        entry.next = self.heads[chain];
        *self.entries.get_mut(at)? = entry;
        self.heads[chain] = at as u32 + 1;
        self.len.store(at as u32 + 1, Ordering::Release);
        Some(true)
    }

    /// Redirects the link that leads to an entry: the head of its chain, or the `next` of the entry before it.
    fn lead(&mut self, to: usize, elsewhere: u32) {
        let (to, mut link) = (to as u32 + 1, self.chain(&self.entries[to]));
        if self.heads[link] == to {
            self.heads[link] = elsewhere;
            return;
        }
        link = self.heads[link] as usize - 1;
        while self.entries[link].next != to {
            link = self.entries[link].next as usize - 1;
        }
        self.entries[link].next = elsewhere;
    }

    /// Takes out up to `most` of the entries that `which` chooses.
    pub fn take(&mut self, most: usize, which: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let (mut at, mut taken) = (0, Vec::new());
        while at < self.len() && taken.len() < most {
            if !which(&self.entries[at]) {
                at += 1;
                continue;
            }
            let last = self.len() - 1;
            taken.push(self.entries[at]);
            self.lead(at, self.entries[at].next);
            if at < last {
                self.lead(last, at as u32 + 1);
                self.entries[at] = self.entries[last];
            }
            self.len.store(last as u32, Ordering::Release);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const ROOM: usize = 6;

    #[derive(Clone, Debug)]
    enum Step {
        Put {
            database: u32,
            name: String,
            changed: i32,
            due: u64,
            backoff_ms: u32,
        },
        /// Takes the due entries of a database out.
        Take(u32, u64, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let put = (1..3u32, "[ab]{1,2}", -2..2i32, 0..9u64, prop_oneof![Just(0), 1..9u32]).prop_map(
            |(database, name, changed, due, backoff_ms)| Step::Put { database, name, changed, due, backoff_ms },
        );
        let take = (1..3u32, 0..9u64, 1..ROOM).prop_map(|(database, now, most)| Step::Take(database, now, most));
        prop::collection::vec(prop_oneof![3 => put, 1 => take], 1..60)
    }

    type Model = BTreeMap<(u32, i32, Vec<u8>), (u64, u32)>;

    fn put(ring: &mut Ring, model: &mut Model, entry: Entry) {
        let key = (entry.database, entry.changed, entry.name().to_vec());
        let new = (entry.due, entry.backoff_ms);
        let full = model.len() == ROOM;
        let expected = match model.get_mut(&key) {
            None if full => None,
            None => {
                model.insert(key, new);
                Some(true)
            }
            Some(known) if known.1 > 0 && new.1 > 0 => {
                if new.1 > known.1 {
                    *known = new;
                }
                Some(false)
            }
            Some(known) if new.0 < known.0 => {
                *known = new;
                Some(true)
            }
            Some(_) => Some(false),
        };
        assert_eq!(ring.put(entry), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Few chains with many entries each: the ring has the same entries as a map that goes through the same steps.
        #[test]
        fn there_is_one_entry_for_each(steps in steps()) {
            let (mut entries, mut heads) = (vec![Entry::new(0, "", 0, 0, 0); ROOM], [0; 2]);
            let len = AtomicU32::new(0);
            let mut ring = Ring { entries: &mut entries, heads: &mut heads, len: &len };
            let mut model = Model::new();
            for step in steps {
                match step {
                    Step::Put { database, name, changed, due, backoff_ms } => {
                        put(&mut ring, &mut model, Entry::new(database, &name, changed, due, backoff_ms));
                    }
                    Step::Take(database, now, most) => {
                        let taken = ring.take(most, |entry| entry.database == database && entry.due <= now);
                        let due = model.iter().filter(|((of, ..), (due, _))| *of == database && *due <= now).count();
                        prop_assert_eq!(taken.len(), due.min(most));
                        for entry in taken {
                            let known = model.remove(&(entry.database, entry.changed, entry.name().to_vec()));
                            prop_assert_eq!(known, Some((entry.due, entry.backoff_ms)));
                        }
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
                for key in model.keys() {
                    let name = std::str::from_utf8(&key.2).unwrap_or("");
                    prop_assert!(ring.find(&Entry::new(key.0, name, key.1, 0, 0)).is_some());
                }
            }
        }
    }

    #[test]
    fn what_is_tried_again_is_made_sooner_by_news_alone() {
        let (mut entries, mut heads, len) = (vec![Entry::new(0, "", 0, 0, 0); 4], [0; 4], AtomicU32::new(0));
        let mut ring = Ring { entries: &mut entries, heads: &mut heads, len: &len };
        assert_eq!(ring.put(Entry::new(1, "r", -1, 1_000, 640)), Some(true));
        assert_eq!(ring.put(Entry::new(1, "r", -1, 10, 10)), Some(false));
        assert_eq!((ring.entries[0].due, ring.entries[0].backoff_ms), (1_000, 640));
        assert_eq!(ring.put(Entry::new(1, "r", -1, 2_000, 1_000)), Some(false));
        assert_eq!((ring.entries[0].due, ring.entries[0].backoff_ms), (2_000, 1_000));
        assert_eq!(ring.put(Entry::new(1, "r", -1, 0, 0)), Some(true));
        assert_eq!(ring.put(Entry::new(1, "r", -1, 10, 10)), Some(false));
        assert_eq!((ring.entries[0].due, ring.entries[0].backoff_ms), (0, 0));
        assert_eq!((ring.len(), ring.put(Entry::new(1, "r", 0, 0, 0)), ring.len()), (1, Some(true), 2));
    }
}
