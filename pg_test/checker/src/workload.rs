//! The resources that clients compete for.

/// Resources and their permits. Clients wait for QUIET by heartbeats alone, so a lost wake-up stays lost, and for the
/// others by session_wait. POOL is a semaphore that the nemesis resizes; SPARE is one with permits to spare.
pub const RESOURCES: [(&str, i32); 5] = [("hot", 1), ("warm", 1), (QUIET, 1), (POOL, 2), (SPARE, 5)];
pub const QUIET: &str = "quiet";
pub const POOL: &str = "pool";
/// The most permits that POOL has at any time.
pub const MOST: i32 = 3;
pub const SPARE: &str = "spare";
/// Another semaphore, which only the nemesis uses.
pub const CREW: &str = "crew";
/// How often each client must get QUIET in the calm. Their calls cross then, and only a crossing can lose a wake-up.
pub const QUIET_TURNS: u32 = 8;
/// Taken by lock_acquire, without a session of the client's own.
pub const LOCK: &str = "nightly";
/// Times to live of sessions, in milliseconds.
pub const TTLS: [u64; 3] = [500, 1_000, 2_000];
