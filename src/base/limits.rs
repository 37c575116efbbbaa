//! The bounds, numbers and times, each with what it bounds. Times are in microseconds where no name says otherwise.
//! What administrators may set is in [`super::settings`].

// Names

/// Bytes of a name, in UTF-8.
pub const MAX_NAME: usize = 255;
/// Names in one call.
pub const MAX_NAMES: usize = 100_000;

// What callers may give

/// What no setting lets a time to live exceed.
pub const LONGEST_TTL_MS: i32 = 86_400_000;
/// Whole days that still are milliseconds of 32 bits.
pub const LONGEST_INTERVAL_MS: i32 = 24 * 86_400_000;

// The catalog

/// How long a call tries for a lock, in microseconds, and how often. The worker waits.
pub const CATALOG_PATIENCE: u64 = 100_000;
pub const CATALOG_PAUSE: u64 = 2_000;

// Shared memory

/// How often calls that find no free slot look through all for such as may be used again, in microseconds.
pub const RECLAIM_AT_MOST_EVERY: u64 = 10_000;
/// How long a call waits for room at most, and how often it looks for it, in microseconds.
pub const ROOM_PATIENCE: u64 = 3_000_000;
pub const ROOM_PAUSE: u64 = 10_000;
/// How often a waiter looks whether its client is still there, in microseconds.
pub const LOOK_AT_CLIENT_EVERY: u64 = 250_000;
/// How long a session that has been woken has time to claim, in microseconds.
pub const HUNGER_PATIENCE: u64 = 50_000;
/// Waits between tries of what another transaction has in hand, in microseconds.
pub const FIRST_BLOCKED: u64 = 10_000;
pub const LAST_BLOCKED: u64 = 1_000_000;
/// Waits between tries of one resource, in milliseconds.
pub const FIRST_RETRY_MS: u32 = 10;
pub const LAST_RETRY_MS: u32 = 1_000;
/// Bytes that are written or read of what sessions had left at a stop: two million sessions.
pub const MAX_LEFT_BYTES: usize = 64 << 20;

// Transactions

/// Resources that one transaction notes one by one; beyond, its database is rescanned. And lanes; beyond, all floors
/// are forgotten.
pub const MAX_NOTES: usize = 1_000;

// Leases

/// Leases granted in one statement: what bounds the stripes held at one time.
pub const GRANT_BATCH: usize = 500;
/// Permits of a semaphore, partitions of a group.
pub const MAX_SLOTS: i32 = 32_768;
/// How long a call waits for a declaration that another transaction has, before it says so, in microseconds; and how
/// often it looks.
pub const DECLARATION_PATIENCE: u64 = 1_000_000;
pub const DECLARATION_PAUSE: u64 = 5_000;
/// Resources that one session may wait for.
pub const MAX_PLACES: usize = 10_000;
/// Places behind the first in line that are looked at for its others, before these are looked up by their sessions.
pub const MAX_BEYOND: usize = 4;

// Groups

/// Ranges of acknowledged positions beyond a cursor: an acknowledgement out of order rewrites them all.
pub const MAX_RANGES: i64 = 1_000;
/// How long newcomers are left to the worker, in microseconds.
pub const NEWCOMER_PATIENCE: u64 = 1_000_000;

// Bridges

/// Bridges of one database. The worker may have two locks for each, and four while it takes them back, or one for each
/// table and index of a row, and of its long values; the lock table is for the whole server, and has room for 6,400
/// where it is smallest by PostgreSQL's own settings.
pub const MAX_BRIDGES: usize = 250;
/// Between two looks at a lock that is held, in microseconds.
pub const WATCH_BRIDGE_EVERY: u64 = 1_000_000;
/// Between two tries to lock what is on the other side, in microseconds.
pub const FIRST_BRIDGE_WAIT: u64 = 10_000;
pub const LAST_BRIDGE_WAIT: u64 = 1_000_000;
/// For how long a row is kept, and with how much of that left it is kept for longer; in microseconds.
pub const KEEP_ROW: i64 = 30_000_000;
pub const RENEW_ROW: i64 = 20_000_000;
/// How often a check tries to lock the row, and the pause between, in microseconds.
pub const ROW_TRIES: u32 = 20;
pub const ROW_PAUSE: u64 = 1_000;
/// How long a write waits for what may still be in its way, such as an index that has just been made: in milliseconds.
pub const ROW_LOCK_TIMEOUT_MS: i32 = 20;

// Positions

/// Bits of the count within a transaction, and so positions of one transaction.
pub const POSITION_BITS: u32 = 20;
pub const MAX_POSITIONS: i64 = 1 << POSITION_BITS;

// Executions

/// Bytes of a result, as text.
pub const MAX_RESULT: usize = 1 << 20;
/// Bytes that are kept of an error.
pub const MAX_EXECUTION_ERROR: usize = 8 << 10;

// Work items

/// Items in one claim.
pub const MAX_CLAIM: i32 = 1_000;
/// Bytes of payloads at which a claim ends, whatever it asks for: it is in memory more than once, as 1,000 of the
/// largest would be with 3 GB.
pub const MAX_CLAIM_BYTES: usize = 16 << 20;
/// Bytes of a payload, as jsonb is kept before compression.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes of a payload as text: a number of a few bytes may have 147,455 digits.
pub const MAX_PAYLOAD_TEXT: usize = 16 << 20;
/// Bytes of an error that are kept.
pub const MAX_ITEM_ERROR: usize = 8_192;
/// The longest wait for another try, in milliseconds.
pub const MAX_ITEM_BACKOFF_MS: i64 = 3_600_000;
/// Items that one call of item_claim frees.
pub const MAX_FREED: usize = 1_000;

// Take-over and the sweep

/// Leases of one predecessor whose guards F are held one by one, while one of its transactions is fenced: the lock
/// table has no room for more.
pub const MAX_FENCES: usize = 1_000;
/// Leases handed over in one transaction: each takes a lock on its new holder's session.
pub const MAX_HAND_OVER: usize = 1_000;
/// Dead sessions that one pass looks at.
pub const MAX_DEAD: usize = 1_000;
/// Leases that one pass looks at: 50 ms.
pub const MAX_LOOKS: usize = 50_000;
/// Sessions that a database's worker remembers from one pass to the next.
pub const MAX_REMEMBERED: usize = 100_000;
/// Rows that others have in hand and that one pass looks beyond.
pub const MAX_PASSED_OVER: usize = 20_000;
/// What a session keeps in grace is looked through for one permit if it is less than that, and else the permits are.
pub const MAX_GRACES: usize = 64;

// The worker

/// How long before a deadline a database worker is started, in microseconds.
pub const WORKER_AHEAD: u64 = 20_000;
/// How long a database worker stays for more after it had something to do, in microseconds.
pub const WORKER_LINGER: u64 = 1_000_000;
/// Leases freed or handed over in one pass, so that a transaction of the worker is short.
pub const MAX_PASS: usize = 1_000;
/// How often a run of retention begins at the oldest row of all, in microseconds.
pub const RETIRE_ANEW: u64 = 3_600_000_000;
/// Posts come in crowds: those within this time after a pass are left to one further pass. In microseconds.
pub const WORKER_GATHER: u64 = 3_000;
/// How long a worker stays at least where others wait for one, in microseconds: it takes a good part of that to start
/// the next.
pub const WORKER_TURN: u64 = 50_000;
/// What is due later than this, in microseconds, is left to the next worker.
pub const WORKER_SOON: u64 = 100_000;
/// Longest sleeps of the launcher in microseconds: while sessions are alive, so that a pause of the machine is noticed,
/// and else.
pub const LAUNCHER_TICK: u64 = 1_000_000;
pub const LAUNCHER_IDLE: u64 = 60_000_000;
/// How often tombstones are looked for where none was over earlier; in microseconds.
pub const RECLAIM_EVERY: u64 = 10_000_000;
/// A launcher that wakes this much too late, in microseconds, was paused: alone, or with the whole machine.
pub const LAUNCHER_LATE: u64 = 1_000_000;
/// How often a slot for a worker is looked for where there is none; in microseconds.
pub const LOOK_FOR_SLOT_EVERY: u64 = 50_000;
/// How often it is told of a database that there is no slot for its worker, in microseconds.
pub const NO_SLOT_TOLD_EVERY: u64 = 600_000_000;
/// Waits between tries to start a worker that fails, in microseconds.
pub const FIRST_START_WAIT: u64 = 100_000;
pub const LAST_START_WAIT: u64 = 10_000_000;
/// How often the launcher's witness wakes, in microseconds.
pub const WITNESS_BEAT: u64 = 100_000;
/// A witness that wakes this much too late, in microseconds, was paused.
pub const WITNESS_LATE: u64 = 500_000;
/// Waits between tries to start the confirmer, and between looks at it, in microseconds.
pub const LOOK_AT_CONFIRMER_EVERY: u64 = 1_000_000;
/// Pauses between looks at what the standbys have acknowledged, in microseconds.
pub const FIRST_CONFIRM_PAUSE: u64 = 1_000;
pub const LAST_CONFIRM_PAUSE: u64 = 20_000;
