//! How shared memory is made: the library asks for it while it is being preloaded, and the postmaster lays it out.

use super::block::{self, Block};
use super::counted::Counted;
use super::databases::Database;
use super::parts::{CONCERNED, Concerned, FLOORS, Floor, Header, Hunger, MapEntry, Pending, SPANS, Span, Surveyed};
use super::refusals::{self, REFUSALS, Table as Refusals};
use super::ring::{self, Entry};
use super::shared::{LOCKS, SHARED, Shared};
use super::slot::Slot;
use super::watch::{Hint, Watch};
use super::{entries, left, map};
use crate::base::settings;
use crate::pg::{clock, server};
use pgrx::pg_sys;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const TRANCHE: &CStr = c"eskit_lease";

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for shared memory. Call this while the library is being preloaded.
pub fn install() {
    // SAFETY: the postmaster has one thread, and hooks are chained as every extension does
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

fn count(setting: &pgrx::GucSetting<i32>) -> usize {
    usize::try_from(setting.get()).unwrap_or(0)
}

/// Returns how many entries for databases there are.
fn entries() -> usize {
    count(&settings::MAX_DATABASES) + entries::VISITS
}

fn pending_count() -> usize {
    server::integer_setting(c"max_prepared_transactions") as usize * 2 + 1
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: PostgreSQL calls this hook when space may be asked for
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        let (sessions, databases) = (count(&settings::MAX_SESSIONS), entries());
        let blocks = sessions.div_ceil(block::SLOTS);
        let sizes = [
            size_of::<Header>(),
            sessions * size_of::<Slot>(),
            blocks * size_of::<Block>(),
            sessions * size_of::<pg_sys::ConditionVariable>(),
            databases * size_of::<Database>(),
            count(&settings::RING_SIZE) * size_of::<Entry>(),
            ring::chains(count(&settings::RING_SIZE)) * size_of::<u32>(),
            pending_count() * size_of::<Pending>(),
            CONCERNED * size_of::<Concerned>(),
            FLOORS * size_of::<Floor>(),
            SPANS * size_of::<Span>(),
            sessions * size_of::<Hunger>(),
            blocks * size_of::<AtomicU32>(),
            sessions * size_of::<Counted>(),
            sessions * size_of::<Counted>(),
            sessions * size_of::<AtomicPtr<pg_sys::Latch>>(),
            sessions * size_of::<Watch>(),
            blocks * size_of::<Hint>(),
            size_of::<Surveyed>(),
            REFUSALS * size_of::<refusals::Entry>(),
        ];
        for size in sizes {
            pg_sys::RequestAddinShmemSpace(size + 64);
        }
        pg_sys::RequestAddinShmemSpace(pg_sys::hash_estimate_size(sessions as _, size_of::<MapEntry>()));
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), LOCKS as std::ffi::c_int);
    }
}

/// Returns a zeroed array of shared memory.
///
/// # Safety
/// Only the startup hook calls this. T must be valid when all its bytes are zero.
unsafe fn array<T>(name: &CStr, len: usize) -> *mut T {
    let mut found = false;
    // SAFETY: as the caller promises
    unsafe {
        let start: *mut T = pg_sys::ShmemInitStruct(name.as_ptr(), len * size_of::<T>(), &mut found).cast();
        std::ptr::write_bytes(start, 0, len);
        start
    }
}

/// Makes all parts. The postmaster runs this at its start and after each crash of a backend. No other process is
/// attached yet, so no lock is needed.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    let (sessions, ring_size) = (count(&settings::MAX_SESSIONS), count(&settings::RING_SIZE));
    // SAFETY: PostgreSQL calls this hook when shared memory can be made; all parts are valid when zero
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let header: &'static Header = &*array::<Header>(c"eskit_lease", 1);
        let mut boot_id = [0u8; 8];
        if !pg_sys::pg_strong_random(boot_id.as_mut_ptr().cast(), boot_id.len()) {
            boot_id = clock::wall().to_ne_bytes();
        }
        header.boot_id.store(i64::from_ne_bytes(boot_id), Ordering::Relaxed);
        // The postmaster is in the data directory. Recovery removes this file, and has not begun yet.
        header.restored.store(std::path::Path::new("backup_label").exists(), Ordering::Relaxed);
        let waits = array::<pg_sys::ConditionVariable>(c"eskit_lease waits", sessions);
        for i in 0..sessions {
            pg_sys::ConditionVariableInit(waits.add(i));
        }
        let (blocks, databases) = (sessions.div_ceil(block::SLOTS), entries());
        let shared = Shared {
            header,
            slots: std::slice::from_raw_parts(array::<Slot>(c"eskit_lease slots", sessions), sessions),
            blocks: std::slice::from_raw_parts(array(c"eskit_lease blocks", blocks), blocks),
            waits,
            map: map::init_map(sessions),
            databases: std::slice::from_raw_parts(array(c"eskit_lease databases", databases), databases),
            ring: array(c"eskit_lease ring", ring_size),
            ring_heads: array(c"eskit_lease ring chains", ring::chains(ring_size)),
            ring_size,
            pending: std::slice::from_raw_parts(array(c"eskit_lease prepared", pending_count()), pending_count()),
            concerned: std::slice::from_raw_parts(array(c"eskit_lease concerned", CONCERNED), CONCERNED),
            floors: array(c"eskit_lease floors", FLOORS),
            spans: array(c"eskit_lease spans", SPANS),
            hunger: std::slice::from_raw_parts(array(c"eskit_lease hunger", sessions), sessions),
            hungry: std::slice::from_raw_parts(array(c"eskit_lease hungry", blocks), blocks),
            unproven: std::slice::from_raw_parts(array(c"eskit_lease unproven", sessions), sessions),
            attached: std::slice::from_raw_parts(array(c"eskit_lease attached", sessions), sessions),
            listeners: std::slice::from_raw_parts(array(c"eskit_lease listeners", sessions), sessions),
            watches: std::slice::from_raw_parts(array(c"eskit_lease watches", sessions), sessions),
            watched: std::slice::from_raw_parts(array(c"eskit_lease watched", blocks), blocks),
            surveyed: &*array::<Surveyed>(c"eskit_lease surveyed", 1),
            refusals: Refusals(std::slice::from_raw_parts(array(c"eskit_lease refusals", REFUSALS), REFUSALS)),
            locks: pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr()),
            left: left::take(),
        };
        SHARED.store(Box::leak(Box::new(shared)), Ordering::Release);
    }
}
