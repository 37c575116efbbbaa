//! The remaining TTL of sessions at an orderly stop, kept for the next start.
//!
//! Heartbeats write no row, so a row cannot say when the session was last heard. By the rows alone, each start of the
//! server would give every session its whole TTL: several restarts in a row would give a dead leader its TTL each time.
//! At an orderly stop the words of the slots are final: all processes that could take a heartbeat have ended before the
//! postmaster does. The postmaster writes what they say to a file as its last act, as pg_stat_statements does. It reads
//! and removes the file at its next start.
//!
//! **What a session is given**, counted from the end of recovery (`t0`):
//!
//! | at the stop the session                                       | is given                                        |
//! |---------------------------------------------------------------|-------------------------------------------------|
//! | was heard since `t0`, and two thirds of its TTL remained      | its TTL: poolers may take 15 s to come back     |
//! | was late, or not heard since `t0`                             | its remaining TTL                               |
//! | had expired                                                   | nothing                                         |
//! | had no slot, so nothing has asked for it since `t0`           | what it was given, less the time since `t0`     |
//!
//! After a crash, and wherever no file counts, each session is given its TTL. **Invariant:** a session's deadline after
//! a start is no earlier than any deadline that it was told before. If `d` is the latest deadline that the session was
//! told, it is given at least `d - stop`, from a `t0` after `stop`. The time for which the server is down does not
//! count.
//!
//! *Heard* means that the deadline is beyond `t0 + ttl`; no start gives a later deadline. The end of an attachment does
//! not count, because the stop itself ends the connection. A session that has ended with its attachment is given its
//! TTL, as after a crash.
//!
//! *The stop* is when the launcher ends. PostgreSQL terminates it together with the clients; the shutdown checkpoint
//! comes after that, and may take longer than a TTL. If the launcher is terminated alone, or is slow, that changes
//! which sessions count as late, but the invariant holds.
//!
//! **A session without a slot** has an entry only if the last file had one. Any other session without a slot is given
//! its TTL less `silent`. `silent` is the time for which the server has run, summed over orderly stops, since the last
//! start that gave each session its whole TTL. An entry with no remaining TTL is dropped once `silent` is as long as
//! the longest TTL.
//!
//! **Which file counts.** The file holds a copy of `pg_control` as it is after the shutdown checkpoint, and counts
//! while the two are the same to the byte. A heartbeat is answered only after `pg_control` has changed. So a file
//! counts for one start, even if a crash undoes its removal. It does not count in a start from a base backup, or as a
//! standby: the sessions may have lived on elsewhere. A copy of the file does not count for the same reason. Its inode
//! number and time of creation give it away. Only a snapshot of the storage, taken between stop and start, looks like
//! the original.
//!
//! **If anything fails**, sessions have their whole TTL, and the log has a line. A standby has no `t0`, and writes no
//! file. A postmaster that ends by a crash or an immediate stop writes none, because its `pg_control` shows no
//! shutdown. The postmaster takes no lock for this, and calls nothing that raises. Backends inherit what it has read;
//! that never changes.

mod file;

use super::leftover::{Key, Left, key, left_at_stop};
use super::shared::{Shared, shared};
use super::slot::{PRIVATE, Slot};
use super::word::{FOREVER, State};
use crate::base::limits;
use crate::pg::catalog::Home;
use crate::pg::clock;
use file::{CONTROL, Origin};
use pgrx::{Uuid, pg_sys};
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The path is in the data directory, which is the postmaster's working directory. Recovery leaves the file alone.
const FILE: &CStr = c"pg_stat/eskit_lease.stat";
const NEW_FILE: &CStr = c"pg_stat/eskit_lease.tmp";

impl Slot {
    /// Returns the TTL that remains to the session of this slot at a stop; `None` if the slot has no session.
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
    /// Returns how long a session of an earlier start lives from the end of recovery on.
    pub(super) fn given(&self, home: Home, session: Uuid, ttl: u64) -> u64 {
        self.left.given(key(home, session), ttl)
    }

    /// Notes that the launcher begins to run. Sessions are served from now until it ends.
    pub fn launcher_begins(&self) {
        self.t0();
        self.header.stop.store(0, Ordering::Release);
        // SAFETY: the callback stays loaded, and touches shared memory alone
        unsafe { pg_sys::before_shmem_exit(Some(launcher_ends), pg_sys::Datum::from(0)) };
    }

    /// Writes the remaining TTL of sessions, if two times are known: when the server began to serve them, and when it
    /// stopped.
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
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// Returns pg_control if it says that the server was shut down in order; else `None`.
fn control() -> Option<[u8; CONTROL]> {
    let control = *fs::read(path(pg_sys::XLOG_CONTROL_FILE)).ok()?.first_chunk()?;
    let state = *control[offset_of!(pg_sys::ControlFileData, state)..].first_chunk()?;
    (u32::from_ne_bytes(state) == pg_sys::DBState::DB_SHUTDOWNED).then_some(control)
}

/// Returns the remaining TTL of sessions at the last stop, or why the file does not count. Without a file each session
/// has its TTL.
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

/// Reads the file and removes it. The postmaster calls this when it makes shared memory. After a crash of a backend
/// there is no file.
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

/// Writes the file. The postmaster calls this after all other processes have ended.
unsafe extern "C-unwind" fn at_exit(code: std::ffi::c_int, _: pg_sys::Datum) {
    if code == 0
        && let Ok(shared) = shared()
        && let Err(error) = shared.write_down()
    {
        fs::remove_file(path(NEW_FILE)).ok();
        pgrx::log!("eskit_lease: could not write \"{}\": {error}", path(FILE).display());
    }
}
