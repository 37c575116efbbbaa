//! What a backend must undo when it goes, however it goes: sessions attached to it end (after their grace), and its place among the
//! waiting calls is given back. A backend that is terminated does not unwind, so both are done by a callback at its exit.

use super::databases::Database;
use super::slots::SlotRef;
use super::word::FOREVER;
use super::{Shared, clock, shared};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    /// Sessions attached here, each with its grace in microseconds.
    static ATTACHED: RefCell<Vec<(SlotRef, u64)>> = const { RefCell::new(Vec::new()) };
    /// The counters of waiting calls that this backend has a place in: of its database, and of the session.
    static WAITING: Cell<Option<[Option<&'static AtomicU32>; 2]>> = const { Cell::new(None) };
    /// The database in which this backend may be asked for help while it waits.
    static HELPING: Cell<Option<&'static Database>> = const { Cell::new(None) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

impl Shared {
    /// Ends the session when this backend exits, after `grace` microseconds.
    pub fn attach(&self, at: SlotRef, grace: u64) {
        register();
        // SAFETY: a plain read
        self.attached(at).store(unsafe { pg_sys::MyProcPid }, Ordering::Release);
        ATTACHED.with_borrow_mut(|attached| {
            attached.retain(|(known, _)| self.look(*known).is_some());
            attached.push((at, grace));
        });
    }

    /// Whether there was an attachment to end. The backend it is attached to finds out when it exits.
    pub fn detach(&self, at: SlotRef) -> bool {
        self.attached(at).swap(0, Ordering::AcqRel) != 0
    }
}

/// A place among the waiting calls of a database, given back when dropped or when the backend exits.
pub struct WaitingPlace;

/// Takes a place unless `most` are taken. `sleepers`: of the session, if it has a slot, which is counted with it.
pub fn take_waiting_place(
    database: &'static Database,
    most: u32,
    sleepers: Option<&'static AtomicU32>,
) -> Option<WaitingPlace> {
    register();
    let free = |taken: u32| (taken < most).then_some(taken + 1);
    database.waiting.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
    if let Some(sleepers) = sleepers {
        sleepers.fetch_add(1, Ordering::AcqRel);
    }
    WAITING.set(Some([Some(&database.waiting), sleepers]));
    HELPING.set(Some(database));
    Some(WaitingPlace)
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        give_back_waiting_place();
    }
}

fn give_back_waiting_place() {
    if let Some(database) = HELPING.take() {
        database.end_help();
    }
    for counter in WAITING.take().into_iter().flatten().flatten() {
        counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| taken.checked_sub(1)).ok();
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
    // SAFETY: a plain read
    let me = unsafe { pg_sys::MyProcPid };
    for (at, grace) in ATTACHED.take() {
        if shared.attached(at).compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            shared.cap(at, clock::now().saturating_add(grace).min(FOREVER));
        }
    }
}
