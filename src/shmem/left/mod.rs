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

/// In the data directory, which the postmaster is in. Recovery leaves it alone.
const FILE: &CStr = c"pg_stat/eskit_lease.stat";
const NEW_FILE: &CStr = c"pg_stat/eskit_lease.tmp";

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
    Path::new(OsStr::from_bytes(name.to_bytes()))
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
