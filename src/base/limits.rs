//! The limits: numbers and times, each with what it bounds. Times are in microseconds unless their names or comments
//! say otherwise. Administrators set the others: see [`super::settings`].

// Names

/// Bytes of a name, in UTF-8.
pub const MAX_NAME: usize = 255;
/// Names in one call.
pub const MAX_NAMES: usize = 100_000;

// Text

/// The longest line of a page of help(). With the margins that psql adds it has 100 columns.
pub const HELP_COLUMNS: usize = 96;

// What callers may give

/// The longest time to live that any setting allows.
pub const LONGEST_TTL_MS: i32 = 86_400_000;
/// The most whole days that fit 32 bits of milliseconds.
pub const LONGEST_INTERVAL_MS: i32 = 24 * 86_400_000;

// The catalog

/// How long a call tries to lock a table of ours or the extension, and the pause between two tries, in microseconds.
/// The worker waits instead.
pub const CATALOG_PATIENCE: u64 = 100_000;
pub const CATALOG_PAUSE: u64 = 2_000;

// Counts

/// The most rows that a view counts one by one, and the most versions that it passes because they do not count. Beyond
/// either bound it takes the number from PostgreSQL's statistics.
pub const MAX_COUNTED: i64 = 10_000;
pub const MAX_PASSED: i64 = 30_000;

// Shared memory

/// How often calls that find no free slot look through all slots for one to reclaim, in microseconds. The opening of a
/// new session always looks.
pub const RECLAIM_AT_MOST_EVERY: u64 = 10_000;
/// How long a call waits for room at most, and the pause between two looks, in microseconds.
pub const ROOM_PATIENCE: u64 = 3_000_000;
pub const ROOM_PAUSE: u64 = 10_000;
/// How often a waiter checks that its client is still there, in microseconds.
pub const LOOK_AT_CLIENT_EVERY: u64 = 250_000;
/// When a waiting call looks again whether news of an outbox is readable: at first, and at most, in microseconds.
pub const NEWS_FIRST: u64 = 1_000;
pub const NEWS_AGAIN: u64 = 50_000;
/// How long after news that is not the last one a session's next news is taken at the soonest, in microseconds.
pub const NEWS_APART: u64 = 10_000;
/// Calls of session_wait that wait in a database by default: half of PgBouncer's default pool.
pub const DEFAULT_WAITING: u32 = 10;
/// The sessions that one call of session_wait_many waits for.
pub const MAX_WAITED: usize = 1_000;
/// For how long such a call grants to its sessions after its wait: for the shortest TTL divided by this.
pub const HELPS_FOR: u64 = 10;
/// After what time a refused wait comes back at the soonest, and the time between two that come back, in microseconds.
pub const FIRST_RETRY: u64 = 100_000;
pub const RETRY_EVERY: u64 = 20_000;
/// How often the log tells of refused waits and late heartbeats, in microseconds, and how many it does not tell of.
pub const WAITS_TOLD_EVERY: u64 = 600_000_000;
pub const FEW_WAITS: u64 = 20;
/// How long a woken session has time to claim, in microseconds.
pub const HUNGER_PATIENCE: u64 = 50_000;
/// The first and the longest wait before a retry of rows that another transaction has locked, in microseconds.
pub const FIRST_BLOCKED: u64 = 10_000;
pub const LAST_BLOCKED: u64 = 1_000_000;
/// How long a refusal is remembered, in microseconds, and the most of one call that are.
pub const REFUSALS_KEPT: u64 = 60_000_000;
pub const REFUSALS_OF_CALL: usize = 64;
/// The first and the longest wait before a retry of one resource, in milliseconds.
pub const FIRST_RETRY_MS: u32 = 10;
pub const LAST_RETRY_MS: u32 = 1_000;
/// The most bytes of the file of sessions' remaining TTL: room for two million sessions.
pub const MAX_LEFT_BYTES: usize = 64 << 20;

/// The time between two lines of the log about ended sessions of a database, in microseconds.
pub const TELL_OF_ENDS_EVERY: u64 = 1_000_000;

// Transactions

/// The most resources, and the most lanes, that one transaction notes one by one. With more resources its database is
/// rescanned; with more lanes all floors of the database are forgotten.
pub const MAX_NOTES: usize = 1_000;

// Leases

/// Leases granted in one statement; this bounds the stripes held at one time.
pub const GRANT_BATCH: usize = 500;
/// How many pauses a call makes for stripes that other calls hold, and the length of a pause in microseconds. A stripe
/// is held for the time of a statement.
pub const STRIPE_PAUSES: u32 = 30;
pub const STRIPE_PAUSE: u64 = 500;
/// Permits of a semaphore, partitions of a group.
pub const MAX_SLOTS: i32 = 32_768;
/// How long a call waits for a declaration that another transaction has locked, and the pause between two looks, in
/// microseconds. Then it answers that the declaration is busy.
pub const DECLARATION_PATIENCE: u64 = 1_000_000;
pub const DECLARATION_PAUSE: u64 = 5_000;
/// The declared names, and the other declarations, that a hint compares with a name that is not declared.
pub const MAX_COMPARED: usize = 1_000;
/// Resources that one session may wait for.
pub const MAX_PLACES: usize = 10_000;
/// How many places behind the first in line are searched for other places of the same session. If more places lie
/// behind, that session's places are looked up by session.
pub const MAX_BEYOND: usize = 4;

// Groups

/// Ranges of acknowledged positions beyond a cursor. An acknowledgement out of order rewrites all of them.
pub const MAX_RANGES: i64 = 1_000;
/// How long newcomers of a group are left to the worker, in microseconds.
pub const NEWCOMER_PATIENCE: u64 = 1_000_000;

// Bridges

/// Bridges of one database. For each bridge the worker may hold two locks, and four while it takes the bridge back. For
/// a bridge to a row it holds one for each table and index of the row, and of the row's long values. The lock table is
/// the whole server's, and holds 6,400 locks with PostgreSQL's smallest settings.
pub const MAX_BRIDGES: usize = 250;
/// The time between two looks at a lock that is held, in microseconds.
pub const WATCH_BRIDGE_EVERY: u64 = 1_000_000;
/// The first and the longest wait before another try to lock what is on the other side, in microseconds.
pub const FIRST_BRIDGE_WAIT: u64 = 10_000;
pub const LAST_BRIDGE_WAIT: u64 = 1_000_000;
/// How long the worker leases a bridge's row, and the remaining time below which it renews that lease, in microseconds.
pub const KEEP_ROW: i64 = 30_000_000;
pub const RENEW_ROW: i64 = 20_000_000;
/// How many times a check tries to lock the row, and the pause between two tries, in microseconds.
pub const ROW_TRIES: u32 = 20;
pub const ROW_PAUSE: u64 = 1_000;
/// How long a write waits for a lock that may still be in its way, such as the lock of an index that was just made. In
/// milliseconds.
pub const ROW_LOCK_TIMEOUT_MS: i32 = 20;

// Positions

/// The bits that count positions within a transaction, and the most positions of one transaction.
pub const POSITION_BITS: u32 = 20;
pub const MAX_POSITIONS: i64 = 1 << POSITION_BITS;

// Executions

/// Bytes of a result, as text.
pub const MAX_RESULT: usize = 1 << 20;
/// Bytes of an error that are kept.
pub const MAX_EXECUTION_ERROR: usize = 8 << 10;

// Work items

/// Items in one claim.
pub const MAX_CLAIM: i32 = 1_000;
/// Bytes of payloads at which a claim ends, however many items it asks for. The payloads are in memory more than once:
/// 1,000 of the largest would take 3 GB.
pub const MAX_CLAIM_BYTES: usize = 16 << 20;
/// Bytes of a payload as jsonb, before compression.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes of a payload as text. A number of a few bytes may have 147,455 digits.
pub const MAX_PAYLOAD_TEXT: usize = 16 << 20;
/// Bytes of an error that are kept.
pub const MAX_ITEM_ERROR: usize = 8_192;
/// The longest wait before another attempt, in milliseconds.
pub const MAX_ITEM_BACKOFF_MS: i64 = 3_600_000;
/// Items that one call of item_claim frees.
pub const MAX_FREED: usize = 1_000;

// Take-over and the sweep

/// The most leases of one predecessor for which a take-over holds one guard F each, while a transaction of the
/// predecessor is fenced. The lock table has no room for more: beyond that it waits for the one guard S.
pub const MAX_FENCES: usize = 1_000;
/// Leases handed over in one transaction. Each takes a lock on its new holder's session.
pub const MAX_HAND_OVER: usize = 1_000;
/// Dead sessions that one run looks at.
pub const MAX_DEAD: usize = 1_000;
/// Leases that one run looks at; that takes 50 ms.
pub const MAX_LOOKS: usize = 50_000;
/// Sessions that a database's worker remembers between two runs.
pub const MAX_REMEMBERED: usize = 100_000;
/// Rows locked by other transactions that one run skips.
pub const MAX_PASSED_OVER: usize = 20_000;
/// To find a permit that a session keeps in grace, the session's leases in grace are searched if they are fewer than
/// this; otherwise all permits of the semaphore are.
pub const MAX_GRACES: usize = 64;

// The worker

/// How long before a deadline a database worker is started, in microseconds.
pub const WORKER_AHEAD: u64 = 20_000;
/// How long a database worker stays after its last work, in microseconds.
pub const WORKER_LINGER: u64 = 1_000_000;
/// Leases freed or handed over in one run, so that a transaction of the worker is short.
pub const MAX_PASS: usize = 1_000;
/// How often a run of retention begins at the oldest row of all, in microseconds.
pub const RETIRE_ANEW: u64 = 3_600_000_000;
/// How long the worker gathers posts to the ring after a run, in microseconds. Posts come in crowds, and one further
/// run serves them all.
pub const WORKER_GATHER: u64 = 3_000;
/// How long a worker stays at least while others wait for a turn, in microseconds. Starting the next one takes a good
/// part of this time.
pub const WORKER_TURN: u64 = 50_000;
/// Work that is due later than this, in microseconds, is left to the next worker.
pub const WORKER_SOON: u64 = 100_000;
/// The longest sleeps of the launcher in microseconds. TICK: while sessions are alive, so that a pause of the machine
/// is noticed. IDLE: at other times.
pub const LAUNCHER_TICK: u64 = 1_000_000;
pub const LAUNCHER_IDLE: u64 = 60_000_000;
/// How often the launcher looks for tombstones, if none ends earlier, in microseconds.
pub const RECLAIM_EVERY: u64 = 10_000_000;
/// A launcher that wakes this much too late, in microseconds, was paused: alone, or with the whole machine.
pub const LAUNCHER_LATE: u64 = 1_000_000;
/// How often the launcher looks for a worker slot while there is none, in microseconds.
pub const LOOK_FOR_SLOT_EVERY: u64 = 50_000;
/// How often the log says that a database has no slot for its worker, in microseconds.
pub const NO_SLOT_TOLD_EVERY: u64 = 600_000_000;
/// The first and the longest wait before another try to start a worker that fails, in microseconds.
pub const FIRST_START_WAIT: u64 = 100_000;
pub const LAST_START_WAIT: u64 = 10_000_000;
/// How often the launcher's witness wakes, in microseconds.
pub const WITNESS_BEAT: u64 = 100_000;
/// A witness that wakes this much too late, in microseconds, was paused.
pub const WITNESS_LATE: u64 = 500_000;
/// How long the launcher waits between two tries to start the confirmer, and between two looks at it, in microseconds.
pub const LOOK_AT_CONFIRMER_EVERY: u64 = 1_000_000;
/// The first and the longest pause between two looks at what the standbys have acknowledged, in microseconds.
pub const FIRST_CONFIRM_PAUSE: u64 = 1_000;
pub const LAST_CONFIRM_PAUSE: u64 = 20_000;
