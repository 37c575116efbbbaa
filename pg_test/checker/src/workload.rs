//! The resources that clients compete for.

/// Waited for by session_wait, by heartbeats alone (so that a wake-up that is lost stays lost), and two semaphores: one that is
/// resized, and one that has permits to spare.
pub const RESOURCES: [(&str, i32); 5] = [("hot", 1), ("warm", 1), (QUIET, 1), (POOL, 2), (SPARE, 5)];
pub const QUIET: &str = "quiet";
pub const POOL: &str = "pool";
/// The most permits that it has at any time.
pub const MOST: i32 = 3;
pub const SPARE: &str = "spare";
/// Another semaphore: the faults are its clients.
pub const CREW: &str = "crew";
/// How often each client must have it in the calm, where its callers cross: only a crossing can lose a wake-up.
pub const QUIET_TURNS: u32 = 8;
/// Taken by lock_acquire, without a session of the client's own.
pub const LOCK: &str = "nightly";
/// Times to live of sessions, in milliseconds.
pub const TTLS: [u64; 3] = [500, 1_000, 2_000];
