//! What a backend must undo when it exits. The sessions attached to it end (after their grace), and its place among the
//! waiting calls is given back. A terminated backend does not unwind, so a callback at its exit does both.

use super::counted::Counted;
use super::databases::Database;
use super::shared::{Shared, shared};
use super::slot::SlotRef;
use super::word::FOREVER;
use crate::base::{limits, settings};
use crate::pg::{clock, server};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

thread_local! {
    /// The sessions attached to this backend, each with its grace in microseconds.
    static ATTACHED: RefCell<Vec<(SlotRef, u64)>> = const { RefCell::new(Vec::new()) };
    /// The wait of this backend.
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// The parts of an attachment, low to high: the backend, whether it is known that the session is used there, and the
/// second in which the session was attached.
const PID: u64 = u32::MAX as u64;
const SETTLED: u64 = 1 << 32;
const SECOND: u32 = 33;
/// The seconds wrap around after 97 days. No session lives so long without a call that settles it.
const SECONDS: u64 = (1 << 23) - 1;

impl Shared {
    /// Makes the session end when this backend exits, after `grace` microseconds.
    pub fn attach(&self, at: SlotRef, grace: u64) {
        register();
        let attachment = my_pid() | (((clock::now() / 1_000_000) & SECONDS) << SECOND);
        self.change_attached(at, |_| Some(attachment));
        ATTACHED.with_borrow_mut(|attached| {
            attached.retain(|(known, _)| self.look(*known).is_some());
            attached.push((at, grace));
        });
    }

    /// Ends an attachment. Returns whether there was one. The backend to which the session was attached finds out when
    /// it exits.
    pub fn detach(&self, at: SlotRef) -> bool {
        self.change_attached(at, |attached| (attached != 0).then_some(0))
    }

    /// Takes note of a call on this connection for a living session. Returns true once, if the session is attached to
    /// another connection and has been used only on other connections for its TTL. That happens behind a pooler.
    pub fn is_stray(&self, at: SlotRef, now: u64) -> bool {
        let attached = self.attached.get(at.index as usize).map_or(0, Counted::get);
        if attached == 0 || attached & SETTLED != 0 {
            return false;
        }
        let is_own = attached & PID == my_pid();
        let seconds = (now / 1_000_000).wrapping_sub(attached >> SECOND) & SECONDS;
        if !is_own && seconds * 1_000 <= u64::from(self.ttl_ms(at)) {
            return false;
        }
        self.change_attached(at, |again| (again == attached).then_some(attached | SETTLED)) && !is_own
    }

    /// Changes which backend a session is attached to. Returns whether there was anything to do.
    fn change_attached(&self, at: SlotRef, step: impl Fn(u64) -> Option<u64>) -> bool {
        // A stand-in has no attachment.
        let attached = self.attached.get(at.index as usize);
        attached.is_some_and(|attached| attached.change(|| self.is_still(at), step).is_some())
    }

    /// Returns the process id of the backend to which the session is attached.
    pub fn attached_pid(&self, at: SlotRef) -> Option<i32> {
        let pid = self.attached.get(at.index as usize)?.get() & PID;
        i32::try_from(pid).ok().filter(|pid| *pid != 0 && self.is_still(at))
    }
}

fn my_pid() -> u64 {
    // SAFETY: a plain read
    u64::from(unsafe { pg_sys::MyProcPid }.cast_unsigned())
}

/// Returns how many session_wait calls may wait in one database at the same time.
pub fn max_waiting() -> u32 {
    let tenth = u32::try_from(server::max_connections() / 10).unwrap_or(1);
    let fits = tenth.clamp(1, limits::DEFAULT_WAITING);
    u32::try_from(settings::MAX_WAITING.get()).unwrap_or(fits)
}

/// A call that waits, as it is noted until its end.
struct Wait {
    database: &'static Database,
    /// The sessions for which it waits.
    sessions: Vec<SlotRef>,
    direct: bool,
}

/// A wait. It ends when this is dropped, or when the backend exits.
pub struct WaitingPlace;

impl Shared {
    /// Begins a wait for sessions. Returns `None` if the wait needs one of the places and all are taken. It needs none
    /// on the connection to which all of the sessions are attached.
    pub fn take_waiting_place(&self, database: &'static Database, sessions: &[SlotRef]) -> Option<WaitingPlace> {
        register();
        let me = i32::try_from(my_pid()).ok();
        let direct = sessions.iter().all(|at| self.attached_pid(*at) == me);
        database.waiting.begin(direct, max_waiting()).then_some(())?;
        sessions.iter().for_each(|at| self.sleeps(*at, true));
        WAIT.set(Some(Wait { database, sessions: sessions.to_vec(), direct }));
        Some(WaitingPlace)
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        give_back_waiting_place();
    }
}

fn give_back_waiting_place() {
    let Some(wait) = WAIT.take() else { return };
    wait.database.end_help();
    wait.database.waiting.end(wait.direct);
    if let Ok(shared) = shared() {
        // A session may have ended meanwhile, and another one may have its slot; then this changes nothing.
        for at in wait.sessions {
            shared.sleeps(at, false);
            shared.listens(at, false);
        }
    }
}

fn register() {
    if !REGISTERED.replace(true) {
        // SAFETY: the callback stays loaded; before_shmem_exit callbacks may use shared memory
        unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
    }
}

unsafe extern "C-unwind" fn at_exit(_: std::ffi::c_int, _: pg_sys::Datum) {
    give_back_waiting_place();
    let Ok(shared) = shared() else { return };
    let me = my_pid();
    for (at, grace) in ATTACHED.take() {
        if shared.change_attached(at, |attached| (attached & PID == me).then_some(0)) {
            shared.cap(at, clock::now().saturating_add(grace).min(FOREVER));
        }
    }
}
