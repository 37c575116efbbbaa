//! What sessions had left at an orderly stop, kept for the next start.
//!
//! A start of the server gives a session of before its whole TTL: no heartbeat has written a row, so a row cannot say
//! when the session was last heard. Several restarts in a row would give a dead leader its TTL each time. At an orderly
//! stop, though, all processes that could take a heartbeat have ended before the postmaster does, and the words of the
//! slots are final. The postmaster writes them to a file as its last act, as pg_stat_statements does, and reads and
//! removes the file at its next start.
//!
//! **What a session is given**, counted from the end of recovery (`t0`):
//!
//! | at the stop the session                                       | is given                                        |
//! |---------------------------------------------------------------|-------------------------------------------------|
//! | was heard since `t0`, and had two thirds of its TTL left      | its TTL: poolers may take 15 s to come back     |
//! | was late, or not heard since `t0`                             | what it had left                                |
//! | had expired                                                   | nothing                                         |
//! | had no slot, so nothing has asked for it since `t0`           | what it was given, less the time since `t0`     |
//!
//! After a crash, and wherever no file counts, it is the TTL. **Invariant:** a session's deadline after a start is no
//! earlier than any that the session was told before. What it was told ends at its deadline `d` at the latest; it is
//! given `d - stop` at least, from a `t0` after `stop`. The time for which the server is down does not count.
//!
//! *Heard* means a deadline beyond `t0 + ttl`, which no start gives. The end of an attachment does not count, because
//! the stop ends the connection; a session that has ended by that is given its TTL, as after a crash. *The stop* is
//! when the launcher ends: PostgreSQL terminates it together with the clients, and then makes the shutdown checkpoint,
//! which may take longer than a TTL. If the launcher is terminated alone, or is slow, that changes what counts as late,
//! and not the invariant.
//!
//! **Sessions without a slot** have an entry only if the last file had one. The others have left their TTL less
//! `silent`: the time that the server has run since a start gave each session its TTL, added up over orderly stops. An
//! entry with nothing left goes once `silent` says the same of all sessions.
//!
//! **Which file counts.** It holds what `pg_control` says after the shutdown checkpoint, and counts while that stands
//! to the byte. A heartbeat is answered only after `pg_control` has changed, so a file counts for one start, also if a
//! crash undoes its removal. It does not count in a start from a base backup, or as a standby: sessions may have lived
//! on elsewhere. For the same reason a copy does not count, which is told by the number of its inode, and when that was
//! made. Only a snapshot of the storage, taken between stop and start, cannot be told from the original.
//!
//! **What fails** leaves the TTL whole, with a line in the log. A standby has no `t0`, and writes no file; nor does a
//! postmaster that ends by a crash or an immediate stop, because its `pg_control` tells of no shutdown. The postmaster
//! takes no lock for this, and calls nothing that raises. Backends inherit what it has read, which never changes.

mod file;

use super::slots::{PRIVATE, Slot};
use super::word::{FOREVER, State};
use super::{Shared, shared};
use crate::base::limits;
use crate::pg::catalog::Home;
use crate::pg::clock;
use file::{CONTROL, Origin};
use pgrx::{Uuid, pg_sys};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::Ordering;

/// In the data directory, which the postmaster is in. Recovery leaves it alone.
const FILE: &CStr = c"pg_stat/eskit_lease.stat";
const NEW_FILE: &CStr = c"pg_stat/eskit_lease.tmp";

/// A session and where its rows are.
type Key = (u128, u32, u32);

fn key(home: Home, session: Uuid) -> Key {
    (u128::from_be_bytes(*session.as_bytes()), home.database, home.table)
}

/// What sessions of an earlier start have left, in microseconds. Empty, it says that each has its TTL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Sorted.
    sessions: Vec<(Key, u64)>,
    /// What a session that is not listed has less than its TTL.
    silent: u64,
}

impl Left {
    /// For how long a session of an earlier start lives from the end of recovery on.
    fn given(&self, key: Key, ttl: u64) -> u64 {
        match self.sessions.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.sessions[at].1,
            Err(_) => ttl.saturating_sub(self.silent),
        }
    }

    /// What is kept at a stop. `slots`: the sessions that have a slot, each with what it has left; `ran`: for how long
    /// the server has run.
    fn at_stop(&self, mut slots: Vec<(Key, u64)>, ran: u64) -> Left {
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

/// What a living session has left at a stop.
fn left_at_stop(deadline: u64, ttl: u64, t0: u64, stop: u64) -> u64 {
    let left = deadline.saturating_sub(stop).min(ttl);
    let (heard, in_time) = (deadline > t0 + ttl, left * 3 >= ttl * 2);
    if heard && in_time { ttl } else { left }
}

impl Slot {
    /// What the session that has this slot has left at a stop; `None` without one.
    fn at_stop(&self, t0: u64, stop: u64) -> Option<(Key, u64)> {
        let (word, ttl) = (self.word(), self.ttl());
        let attached = self.cap() != FOREVER && self.ttl_ms.load(Ordering::Relaxed) & PRIVATE == 0;
        let left = match word.state() {
            State::Free => return None,
            State::Alive | State::Frozen => left_at_stop(word.at(), ttl, t0, stop),
            State::Dead | State::Gone if attached => ttl,
            State::Dead | State::Gone => 0,
        };
        Some((key(self.home(), self.session()), left))
    }
}

impl Shared {
    /// For how long a session of an earlier start lives from the end of recovery on.
    pub(super) fn given(&self, home: Home, session: Uuid, ttl: u64) -> u64 {
        self.left.given(key(home, session), ttl)
    }

    /// The launcher begins to run: sessions are served from now on, until it ends.
    pub fn launcher_begins(&self) {
        self.t0();
        self.header.stop.store(0, Ordering::Release);
        // SAFETY: the callback stays loaded, and touches shared memory alone
        unsafe { pg_sys::before_shmem_exit(Some(launcher_ends), pg_sys::Datum::from(0)) };
    }

    /// Writes what sessions have left, if it is known when the server began to serve them and when it stopped.
    fn write_down(&self) -> io::Result<()> {
        let (t0, stop) = (self.header.t0.load(Ordering::Acquire), self.header.stop.load(Ordering::Acquire));
        let Some(control) = control().filter(|_| t0 != 0 && stop != 0) else { return Ok(()) };
        let in_use = &self.slots[..self.used() as usize];
        let slots = in_use.iter().filter_map(|slot| slot.at_stop(t0, stop)).collect();
        let left = self.left.at_stop(slots, stop.saturating_sub(t0));
        let mut file = File::create(path(NEW_FILE))?;
        let bytes = left.encode(Origin::of(&control, &file.metadata()?));
        if bytes.len() > limits::MAX_LEFT_BYTES {
            return Err(io::Error::other(format!("{} sessions are too many", left.sessions.len())));
        }
        file.write_all(&bytes)?;
        drop(file);
        // SAFETY: both texts end in NUL; a failure is logged
        unsafe { pg_sys::durable_rename(NEW_FILE.as_ptr(), FILE.as_ptr(), pg_sys::LOG as i32) };
        Ok(())
    }
}

fn path(name: &CStr) -> &Path {
    Path::new(name.to_str().unwrap_or_default())
}

/// What pg_control says while the server is stopped in order; `None` otherwise.
fn control() -> Option<[u8; CONTROL]> {
    let control = *fs::read(path(pg_sys::XLOG_CONTROL_FILE)).ok()?.first_chunk()?;
    let state = *control[offset_of!(pg_sys::ControlFileData, state)..].first_chunk()?;
    (u32::from_ne_bytes(state) == pg_sys::DBState::DB_SHUTDOWNED).then_some(control)
}

/// What the last stop has left, or why the file does not count. Without a file sessions have their TTL.
fn read() -> Result<Left, String> {
    let file = match fs::metadata(path(FILE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Left::default()),
        found => found.map_err(|error| format!("cannot be read ({error})"))?,
    };
    if ["backup_label", "standby.signal", "recovery.signal"].iter().any(|sign| Path::new(sign).exists()) {
        return Err("is not of this history".to_owned());
    }
    if file.len() > limits::MAX_LEFT_BYTES as u64 {
        return Err("is damaged".to_owned());
    }
    let control = control().ok_or("is of another stop than the last")?;
    let bytes = fs::read(path(FILE)).map_err(|error| format!("cannot be read ({error})"))?;
    Left::decode(&bytes, Origin::of(&control, &file)).map_err(str::to_owned)
}

/// Reads the file and removes it; in the postmaster, when shared memory is made. After a crash of a backend there is
/// none.
pub(super) fn take() -> Left {
    let found = read();
    if path(FILE).exists() {
        // SAFETY: the text ends in NUL; a failure is logged, and does no harm, as pg_control is about to change
        unsafe { pg_sys::durable_unlink(FILE.as_ptr(), pg_sys::LOG as i32) };
    }
    // SAFETY: the postmaster, whose children forget this callback
    unsafe { pg_sys::on_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
    found.unwrap_or_else(|why| {
        pgrx::log!(
            "eskit_lease: ignored \"{}\", which {why}: each session has its whole TTL from now on",
            path(FILE).display()
        );
        Left::default()
    })
}

unsafe extern "C-unwind" fn launcher_ends(_: std::ffi::c_int, _: pg_sys::Datum) {
    if let Ok(shared) = shared() {
        shared.header.stop.store(clock::now(), Ordering::Release);
    }
}

/// In the postmaster, after all other processes.
unsafe extern "C-unwind" fn at_exit(code: std::ffi::c_int, _: pg_sys::Datum) {
    if code == 0
        && let Ok(shared) = shared()
        && let Err(error) = shared.write_down()
    {
        fs::remove_file(path(NEW_FILE)).ok();
        pgrx::log!("eskit_lease: could not write \"{}\": {error}", path(FILE).display());
    }
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
        /// When the session's client is heard, before the end.
        beats: Vec<u64>,
        /// Whether anything makes the session's slot.
        is_asked_for: bool,
        crashes: bool,
        /// For how long the server is down afterwards.
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
        /// However often the server is stopped and crashes, a session outlives what it was told. Over orderly stops
        /// a silent one outlives neither its TTL nor the third in which it was not yet late, by the time that the
        /// server has run.
        #[test]
        fn nobody_loses_what_was_told_and_the_dead_do_not_live_on(starts in starts()) {
            let (key, mut left, mut now) = ((1, 2, 3), Left::default(), 1_000);
            // Until when it was told to trust itself, and for how long the server has run since then, or since a crash.
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
                    // A row can say so only where there is a slot, or the stop is orderly.
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
        // Not heard since the start.
        assert_eq!(left_at_stop(t0 + TTL, TTL, t0, t0 + 1), TTL - 1);
        // A launcher that ended long before the server.
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
