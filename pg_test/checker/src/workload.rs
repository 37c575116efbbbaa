//! What is competed for.

/// Waited for by session_wait, by heartbeats alone (so that a wake-up that is lost stays lost), and a semaphore.
pub const RESOURCES: [(&str, i32); 4] = [("hot", 1), ("warm", 1), (QUIET, 1), ("pool", 2)];
pub const QUIET: &str = "quiet";
/// How often each client is to have it in the calm, where its callers cross: a wake-up is lost only between two that do.
pub const QUIET_TURNS: u32 = 8;
/// Taken by lock_acquire, without a session of the client's own.
pub const LOCK: &str = "nightly";
/// Times to live of sessions, in milliseconds.
pub const TTLS: [u64; 3] = [500, 1_000, 2_000];
