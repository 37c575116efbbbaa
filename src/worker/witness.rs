//! The witness of a pause: a second process that tells whether the launcher alone stood still, or all of the server.
//!
//! When the whole machine pauses (suspended, frozen, starved) no client can send a heartbeat, and sessions get that
//! time back. When only the launcher stands still (stopped, traced, starved alone) clients and sessions live and expire
//! as ever, and nothing is given back: what has expired stays expired. The launcher cannot tell one from the other by
//! itself, and on a server that is idle no other process runs to be asked.
//!
//! So the launcher forks a child, which takes no worker slot, has no shared memory of PostgreSQL's and runs none of its
//! code. It wakes every [`limits::WITNESS_BEAT`], and writes down when, and its last pause, on a page that it shares
//! with the launcher. A launcher that wakes too late was paused together with the machine for as long as both stood
//! still. Without a child nothing is known, and nothing is given back.
//!
//! The child ends with its parent, for whatever reason that does: the kernel sends it a signal. It always ends by an
//! exit of its own, with status zero. In a container the postmaster may be process 1, which inherits the child, and
//! takes any other end for the crash of a backend.

use crate::base::limits;
use crate::pg::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the child has written: when it was last awake, and its last pause. All zero before it has begun.
#[derive(Default)]
struct Page {
    awake: AtomicU64,
    paused_from: AtomicU64,
    paused_to: AtomicU64,
}

impl Page {
    /// The child is awake.
    fn beat(&self, now: u64) {
        let before = self.awake.load(Ordering::Relaxed);
        if before != 0 && now > before + limits::WITNESS_BEAT + limits::WITNESS_LATE {
            // A reader that finds only the first written sees no pause here, but the child still asleep.
            self.paused_from.store(before, Ordering::Release);
            self.paused_to.store(now, Ordering::Release);
        }
        self.awake.store(now, Ordering::Release);
    }

    /// From when to when the child has stood still within a span of time.
    fn pause(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        // In this order: a pause that is over is written before the child is awake.
        let awake = self.awake.load(Ordering::Acquire);
        if awake == 0 {
            return None;
        }
        let end = self.paused_to.load(Ordering::Acquire);
        let over = (self.paused_from.load(Ordering::Acquire), end);
        let still = (awake, if to > awake + limits::WITNESS_BEAT + limits::WITNESS_LATE { to } else { awake });
        let overlap = |(start, end): (u64, u64)| (start.max(from), end.min(to));
        [still, over].into_iter().map(overlap).filter(|(start, end)| start < end).max_by_key(|(start, end)| end - start)
    }
}

/// The child, as the launcher knows it.
pub struct Witness {
    page: &'static Page,
    child: libc::pid_t,
}

impl Witness {
    /// Forks the child. `None` where the system has no room for it.
    pub fn new() -> Option<Witness> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of zeroed memory, which is a valid Page, and is never unmapped
        let page = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), size_of::<Page>(), protection, flags, -1, 0);
            if start == libc::MAP_FAILED {
                return None;
            }
            &*start.cast::<Page>()
        };
        let mut witness = Witness { page, child: 0 };
        witness.fork();
        Some(witness)
    }

    fn fork(&mut self) {
        self.page.awake.store(0, Ordering::Release);
        // SAFETY: the process has one thread; with all signals held back none of PostgreSQL's handlers runs in the
        // child
        self.child = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &all, &mut before);
            let parent = libc::getpid();
            let child = libc::fork();
            if child == 0 {
                watch(self.page, parent);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            child
        };
    }

    /// Returns how long all of the server stood still within a span of time, and since when. Sees to it that there is a
    /// child for the next.
    pub fn pause(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
        // SAFETY: asks whether the child has ended, and takes note of it
        let lives = self.child > 0 && unsafe { libc::waitpid(self.child, std::ptr::null_mut(), libc::WNOHANG) } == 0;
        let pause = self.page.pause(from, to).filter(|_| lives);
        if !lives {
            self.fork();
        }
        pause
    }
}

extern "C" fn leave(_signal: libc::c_int) {
    // SAFETY: may be called in a handler; runs nothing of what the launcher has registered for its exit
    unsafe { libc::_exit(0) };
}

/// What the child does, to its end. It begins as a copy of the launcher: it lets go of the launcher's files and of
/// shared memory, and calls nothing but the system.
///
/// # Safety
/// Only in a process that has just been forked, with all signals held back.
unsafe fn watch(page: &Page, parent: libc::pid_t) -> ! {
    unsafe extern "C" {
        fn PGSharedMemoryDetach();
    }
    // SAFETY: as the caller promises; nothing of PostgreSQL's is used after its memory is gone
    unsafe {
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let ends: [libc::c_int; 6] =
            [libc::SIGTERM, libc::SIGQUIT, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        for signal in ends {
            libc::signal(signal, leave as *const () as libc::sighandler_t);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::prctl(libc::PR_SET_NAME, c"eskit_witness".as_ptr());
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        PGSharedMemoryDetach();
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // The parent may have ended before the kernel was asked to tell.
        while libc::getppid() == parent {
            page.beat(clock::now());
            std::thread::sleep(Duration::from_micros(limits::WITNESS_BEAT));
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn a_child_that_beats_has_not_paused() {
        let page = Page::default();
        assert_eq!(page.pause(0, 100 * S), None, "it has not begun");
        (0..100).for_each(|beat| page.beat(10 * S + beat * limits::WITNESS_BEAT));
        assert_eq!(page.pause(11 * S, 20 * S), None);
    }

    #[test]
    fn a_pause_is_seen_from_its_beginning_and_for_as_long_as_both_stood_still() {
        let page = Page::default();
        page.beat(10 * S);
        // The launcher wakes first.
        assert_eq!(page.pause(11 * S, 18 * S), Some((11 * S, 18 * S)));
        assert_eq!(page.pause(9 * S, 18 * S), Some((10 * S, 18 * S)));
        // Or the child does.
        page.beat(17 * S);
        page.beat(17 * S + limits::WITNESS_BEAT);
        assert_eq!(page.pause(9 * S, 18 * S), Some((10 * S, 17 * S)));
        assert_eq!(page.pause(12 * S, 14 * S), Some((12 * S, 14 * S)));
        assert_eq!(page.pause(17 * S, 17 * S + limits::WITNESS_LATE), None, "the next span begins after it");
    }
}
