//! The witness of a pause: a second process that tells whether only the launcher stood still, or the whole server.
//!
//! When the whole machine pauses (suspended, frozen, starved) no client can send a heartbeat. Sessions then get that
//! time back. When only the launcher stands still (stopped, traced, starved alone), clients and sessions live and
//! expire as ever. Then no time is given back: an expired session stays expired. The launcher cannot tell the two apart
//! by itself. On an idle server there is no other process to ask.
//!
//! So the launcher forks a child. The child takes no worker slot, has no shared memory of PostgreSQL's, and runs none
//! of PostgreSQL's code. It wakes every [`limits::WITNESS_BEAT`]. On a page shared with the launcher it writes when it
//! woke, and its last pause. If the launcher wakes too late, the machine was paused for the time in which both stood
//! still. Without a child the launcher cannot know this, and no time is given back.
//!
//! The child ends with its parent, however the parent ends: the kernel sends the child a signal. The child always exits
//! by itself, with status zero. In a container the postmaster may be process 1, which inherits the child. The
//! postmaster would take any other end for the crash of a backend.

use crate::base::limits;
use crate::pg::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the child writes: when it was last awake, and its last pause. All zero before it has begun.
#[derive(Default)]
struct Page {
    awake: AtomicU64,
    paused_from: AtomicU64,
    paused_to: AtomicU64,
}

impl Page {
    /// Notes that the child is awake, and a pause if it wakes too late.
    fn beat(&self, now: u64) {
        let before = self.awake.load(Ordering::Relaxed);
        if before != 0 && now > before + limits::WITNESS_BEAT + limits::WITNESS_LATE {
            // A reader that sees only the first of the two stores finds no pause here. It still takes the child for
            // asleep.
            self.paused_from.store(before, Ordering::Release);
            self.paused_to.store(now, Ordering::Release);
        }
        self.awake.store(now, Ordering::Release);
    }

    /// Returns the child's longest pause between `from` and `to`.
    fn pause(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        // This order matters: the child writes a pause that is over before it writes that it is awake.
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
    /// Forks the child. Returns `None` if the system has no memory for the page.
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
        // SAFETY: the process has one thread; all signals are blocked, so none of PostgreSQL's handlers runs in the
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

    /// Returns the time in which the whole server stood still between `from` and `to`, if it did. Forks a new child if
    /// the old one has ended.
    pub fn pause(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
        // SAFETY: asks whether the child has ended, and reaps it
        let lives = self.child > 0 && unsafe { libc::waitpid(self.child, std::ptr::null_mut(), libc::WNOHANG) } == 0;
        let pause = self.page.pause(from, to).filter(|_| lives);
        if !lives {
            self.fork();
        }
        pause
    }
}

extern "C" fn leave(_signal: libc::c_int) {
    // SAFETY: may be called in a handler; runs no exit callback that the launcher has registered
    unsafe { libc::_exit(0) };
}

/// Runs the child, to its end. The child begins as a copy of the launcher. It gives up the launcher's files and shared
/// memory, and then makes only system calls.
///
/// # Safety
/// The process has just been forked, and all signals are blocked.
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
        // The parent may have ended before the kernel was asked to send the signal.
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
        // The child wakes first.
        page.beat(17 * S);
        page.beat(17 * S + limits::WITNESS_BEAT);
        assert_eq!(page.pause(9 * S, 18 * S), Some((10 * S, 17 * S)));
        assert_eq!(page.pause(12 * S, 14 * S), Some((12 * S, 14 * S)));
        assert_eq!(page.pause(17 * S, 17 * S + limits::WITNESS_LATE), None, "the next span begins after it");
    }
}
