//! How much of its TTL remains to a session at a stop, and how much it is given at the next start: a calculation
//! without files or shared memory. The head of [`super::left`] has the rules.

use crate::base::limits;
use crate::pg::catalog::Home;
use pgrx::Uuid;

/// A session, and where its rows are.
pub type Key = (u128, u32, u32);

pub fn key(home: Home, session: Uuid) -> Key {
    (u128::from_be_bytes(*session.as_bytes()), home.database, home.table)
}

/// The remaining TTL of sessions of an earlier start, in microseconds. If empty, each session has its whole TTL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Sorted by key.
    pub(super) sessions: Vec<(Key, u64)>,
    /// How much of its TTL a session that is not listed has used up.
    pub(super) silent: u64,
}

impl Left {
    /// Returns how long a session of an earlier start lives from the end of recovery on.
    pub fn given(&self, key: Key, ttl: u64) -> u64 {
        match self.sessions.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.sessions[at].1,
            Err(_) => ttl.saturating_sub(self.silent),
        }
    }

    /// Returns what to keep at a stop. `slots`: the sessions that have a slot, each with its remaining TTL. `ran`: how
    /// long the server has run.
    pub fn at_stop(&self, mut slots: Vec<(Key, u64)>, ran: u64) -> Left {
        slots.sort_unstable();
        let is_in = |key: &Key| slots.binary_search_by_key(key, |(key, _)| *key).is_ok();
        let without_slot = self.sessions.iter().filter(|(key, _)| !is_in(key));
        let mut sessions: Vec<_> = without_slot.map(|(key, left)| (*key, left.saturating_sub(ran))).collect();
        sessions.append(&mut slots);
        let silent = self.silent.saturating_add(ran);
        sessions.retain(|(_, left)| *left > 0 || silent < u64::from(limits::LONGEST_TTL_MS.cast_unsigned()) * 1_000);
        sessions.sort_unstable();
        Left { sessions, silent }
    }
}

/// Returns the remaining TTL of a living session at a stop: the whole TTL if the session was heard and in time.
pub fn left_at_stop(deadline: u64, ttl: u64, t0: u64, stop: u64) -> u64 {
    let left = deadline.saturating_sub(stop).min(ttl);
    let (heard, in_time) = (deadline > t0 + ttl, left * 3 >= ttl * 2);
    if heard && in_time { ttl } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: u64 = 6_000;

    /// One start of the server, in milliseconds.
    #[derive(Clone, Debug)]
    struct Start {
        runs: u64,
        /// When the server hears the session's client. Only times before the stop count.
        beats: Vec<u64>,
        /// Whether some call makes the session's slot.
        is_asked_for: bool,
        crashes: bool,
        /// How long the server is down afterwards.
        down: u64,
    }

    fn starts() -> impl Strategy<Value = Vec<Start>> {
        let beats = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0..TTL, 0..4)];
        let crashes = prop::bool::weighted(0.2);
        let start = (0..TTL, beats, any::<bool>(), crashes, 0..TTL)
            .prop_map(|(runs, beats, is_asked_for, crashes, down)| Start { runs, beats, is_asked_for, crashes, down });
        prop::collection::vec(start, 1..12)
    }

    proptest! {
        /// However often the server stops and crashes, a session lives as long as its client was told. If only orderly
        /// stops happen, a silent session is not kept much longer: its TTL and a third of it at most, counted while the
        /// server runs.
        #[test]
        fn nobody_loses_what_was_told_and_the_dead_do_not_live_on(starts in starts()) {
            let (key, mut left, mut now) = ((1, 2, 3), Left::default(), 1_000);
            // The first is until when the session was told to trust itself. The second is how long the server has run
            // since the session was heard, or since a crash.
            let (mut told, mut silent_for, mut dead) = (now + TTL, 0, false);
            for (number, start) in starts.iter().enumerate() {
                let (t0, stop) = (now, now + start.runs);
                let first = number == 0;
                let mut deadline = t0 + if first { TTL } else { left.given(key, TTL) };
                prop_assert!(deadline >= told, "{} < {}", deadline, told);
                prop_assert!(!dead || deadline == t0, "it lives again");
                let mut has_slot = first || start.is_asked_for;
                let mut beats: Vec<u64> = start.beats.iter().map(|at| t0 + at).filter(|at| *at < stop).collect();
                beats.sort_unstable();
                let mut heard_at = t0;
                for at in beats.into_iter().filter(|_| !dead) {
                    has_slot = true;
                    if at < deadline {
                        deadline = deadline.max(at + TTL);
                        told = deadline;
                        (silent_for, heard_at) = (0, at);
                    }
                }
                silent_for += stop - heard_at;
                if stop < deadline {
                    prop_assert!(silent_for <= TTL + TTL / 3);
                } else {
                    // Only a slot or an orderly stop can tell that the session is dead.
                    dead = !start.crashes;
                }
                let slots = if has_slot { vec![(key, left_at_stop(deadline, TTL, t0, stop))] } else { vec![] };
                left = if start.crashes { Left::default() } else { left.at_stop(slots, start.runs) };
                if start.crashes {
                    silent_for = 0;
                }
                now = stop + start.down;
            }
        }
    }

    #[test]
    fn who_is_in_time_has_it_all() {
        let (t0, stop) = (10_000, 20_000);
        assert_eq!(left_at_stop(stop + 4_000, TTL, t0, stop), TTL);
        assert_eq!(left_at_stop(stop + 3_999, TTL, t0, stop), 3_999);
        assert_eq!(left_at_stop(stop - 1, TTL, t0, stop), 0);
        // The session was not heard since the start.
        assert_eq!(left_at_stop(t0 + TTL, TTL, t0, t0 + 1), TTL - 1);
        // The launcher ended long before the server.
        assert_eq!(left_at_stop(stop + 60_000, TTL, t0, stop), TTL);
    }

    #[test]
    fn entries_go_once_they_say_nothing_more() {
        let longest = u64::from(limits::LONGEST_TTL_MS.cast_unsigned()) * 1_000;
        let left = Left::default().at_stop(vec![((1, 2, 3), 0), ((2, 2, 3), 5)], 1_000);
        assert_eq!((left.sessions.len(), left.given((1, 2, 3), TTL), left.given((9, 2, 3), TTL)), (2, 0, TTL - 1_000));
        let left = left.at_stop(vec![], longest);
        assert_eq!((left.sessions.len(), left.given((1, 2, 3), longest), left.given((2, 2, 3), longest)), (0, 0, 0));
    }
}
