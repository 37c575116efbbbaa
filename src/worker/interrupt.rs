//! What a command that lets no other process use a database does to a worker: DROP DATABASE, ALTER DATABASE ..
//! RENAME and CREATE DATABASE .. TEMPLATE.
//!
//! A worker that has the locks of bridges stays in its database. From 19 on PostgreSQL ends it for such a command: on
//! each of its tries, which take five seconds, also if it then refuses the command because clients are connected.
//! Meanwhile the bridges would be without their locks. So this worker stays while a client is connected to its
//! database, and leaves once there is none: where the command can succeed, it does, and a refused one touches no
//! bridge. Only a request that meets the worker in the midst of a run ends it: a run may wait for a lock, and a
//! shutdown must not wait for that.
//!
//! The postmaster may not ask again, also when it shuts down. So a worker that has stayed once looks for clients after
//! each sleep, as a shutdown ends these first, and waits for no lock for long.

#[cfg(feature = "pg19")]
mod stay {
    use crate::bridge::tend;
    use pgrx::pg_sys;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub const INTERRUPTIBLE: u32 = pg_sys::BGWORKER_INTERRUPTIBLE;

    /// The postmaster has asked this process to end, which has stayed.
    static STAYED: AtomicBool = AtomicBool::new(false);

    /// Before interrupts are handled: takes the postmaster's request back while clients need this worker's bridges, and
    /// makes it again once there is no client. A request by pg_terminate_backend stands.
    pub fn stay_for_clients() {
        if !tend::is_tending() && !STAYED.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: in a background worker that is connected to a database, outside of any lock. The signal handler only
        // sets what is reset here.
        unsafe {
            let asked = pg_sys::ProcDiePending != 0 && pg_sys::ProcDieSenderPid == pg_sys::PostmasterPid;
            if !asked && !STAYED.load(Ordering::Relaxed) {
                return;
            }
            if !tend::is_tending() || pg_sys::CountDBConnections(pg_sys::MyDatabaseId) == 0 {
                (pg_sys::ProcDiePending, pg_sys::InterruptPending) = (1, 1);
            } else if asked {
                (pg_sys::ProcDiePending, pg_sys::ProcDieSenderPid) = (0, 0);
                if !STAYED.swap(true, Ordering::Relaxed) {
                    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
                    pg_sys::SetConfigOption(c"lock_timeout".as_ptr(), c"5s".as_ptr(), context, source);
                }
            }
        }
    }
}

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
mod stay {
    pub const INTERRUPTIBLE: u32 = 0;

    /// PostgreSQL asks no worker.
    pub fn stay_for_clients() {}
}

pub use stay::{INTERRUPTIBLE, stay_for_clients};
