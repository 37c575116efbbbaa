//! The settings. Each describes its unit, range and reason; pg_settings and `help()` show that.

use super::limits;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// When listeners are notified.
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Notify {
    #[name = c"on"]
    On,
    #[name = c"off"]
    Off,
    /// While a listener has asked for it.
    #[name = c"auto"]
    Auto,
}

/// The level at which the log tells of sessions that have expired or were taken over.
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum LogEnds {
    #[name = c"off"]
    Off,
    #[name = c"debug1"]
    Debug1,
    #[name = c"log"]
    Log,
    #[name = c"warning"]
    Warning,
}

pub static MAX_SESSIONS: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static MAX_SESSIONS_PER_ROLE: GucSetting<i32> = GucSetting::<i32>::new(0);
pub static MAX_DATABASES: GucSetting<i32> = GucSetting::<i32>::new(64);
pub static RING_SIZE: GucSetting<i32> = GucSetting::<i32>::new(4_096);
pub static MAX_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(4);
pub static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static LOG_ENDS: GucSetting<LogEnds> = GucSetting::<LogEnds>::new(LogEnds::Log);
pub static NOTIFY: GucSetting<Notify> = GucSetting::<Notify>::new(Notify::On);
pub static DEFAULT_TTL: GucSetting<i32> = GucSetting::<i32>::new(10_000);
pub static MIN_TTL: GucSetting<i32> = GucSetting::<i32>::new(1_000);
pub static MAX_TTL: GucSetting<i32> = GucSetting::<i32>::new(3_600_000);
pub static MAX_WAIT: GucSetting<i32> = GucSetting::<i32>::new(10_000);
pub static CONFIRM_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(0);
pub static MAX_WAITING: GucSetting<i32> = GucSetting::<i32>::new(-1);
pub static FENCE_SUPERUSERS: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static DECLARED_NAMES: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static ROW_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(3_600);
pub static HISTORY_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(86_400);
pub static HISTORY_GRANTS: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static DEAD_ITEM_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(30 * 86_400);
pub static EXECUTION_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(30 * 86_400);

/// Returns how many sessions one role may have, if the caller has a bound.
pub fn max_sessions_per_role() -> Option<u32> {
    u32::try_from(MAX_SESSIONS_PER_ROLE.get()).ok().filter(|most| *most > 0)
}

/// Defines all settings. Those that need shared memory exist only if the library is preloaded: PostgreSQL refuses to
/// define them later.
pub fn define_at_preload() {
    define_sessions();
    define_waiting();
    define_work();
    define_retention();
    define_checks();
}

fn define_sessions() {
    int(
        c"eskit_lease.max_sessions",
        c"Sessions that may be alive at the same time in the whole server.",
        c"Each takes about 280 bytes of shared memory. A session that has ended needs none, but for one TTL where it was opened before the server was restarted.",
        &MAX_SESSIONS,
        (16, 1_000_000),
        GucContext::Postmaster,
        GucFlags::empty(),
    );
    int(
        c"eskit_lease.max_sessions_per_role",
        c"Sessions that one role may have at the same time in the whole server; 0 for as many as there is room for.",
        c"A role that opens sessions and lets them expire takes room from others for their times to live. May be set for a role, by a superuser.",
        &MAX_SESSIONS_PER_ROLE,
        (0, 1_000_000),
        GucContext::Suset,
        GucFlags::empty(),
    );
    int(
        c"eskit_lease.default_ttl",
        c"Time to live of a session that is opened without one.",
        c"A session that sends no heartbeat for this long has ended.",
        &DEFAULT_TTL,
        (100, limits::LONGEST_TTL_MS),
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    int(
        c"eskit_lease.min_ttl",
        c"Shortest time to live that a session may ask for.",
        c"A client that pauses for longer than its time to live loses what it holds.",
        &MIN_TTL,
        (100, limits::LONGEST_TTL_MS),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"eskit_lease.max_ttl",
        c"Longest time to live that a session may ask for.",
        c"What a crashed client holds stays held for up to this long.",
        &MAX_TTL,
        (100, limits::LONGEST_TTL_MS),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"eskit_lease.confirm_interval",
        c"How often the synchronous standbys confirm that this is the primary; 0 for never.",
        c"No session is told to trust itself for longer than its time to live from the start of the last confirmation. A third of the shortest time to live, or less.",
        &CONFIRM_INTERVAL,
        (0, 3_600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}

fn define_waiting() {
    int(
        c"eskit_lease.max_wait",
        c"Longest time that one session_wait waits.",
        c"A waiting statement holds a snapshot, which keeps VACUUM from removing newer dead rows.",
        &MAX_WAIT,
        (1, 600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"eskit_lease.max_waiting",
        c"session_wait calls that may wait at once in one database.",
        c"-1 means 10, or a tenth of max_connections if that is less: half of a small pool. Further calls answer at once, so that waiters never starve the heartbeats of their own pool. A wait on the connection that its session is attached to does not count.",
        &MAX_WAITING,
        (-1, 262_143),
        GucContext::Sighup,
        GucFlags::empty(),
    );
}

fn define_work() {
    int(
        c"eskit_lease.max_databases",
        c"Databases of this server that may use the extension at once.",
        c"A database counts while it is in use: by sessions, waiting calls, or work to do. One that is not in use gives its entry up to one that needs it. Each takes about 1260 bytes of shared memory.",
        &MAX_DATABASES,
        (1, 10_000),
        GucContext::Postmaster,
        GucFlags::empty(),
    );
    int(
        c"eskit_lease.ring_size",
        c"Changed resources that may wait for the background worker.",
        c"Each takes about 300 bytes of shared memory. When the ring is full nothing is lost: the worker looks at all resources of the database.",
        &RING_SIZE,
        (16, 1_000_000),
        GucContext::Postmaster,
        GucFlags::empty(),
    );
    int(
        c"eskit_lease.max_workers",
        c"Database workers that may run at once.",
        c"Each needs one of max_worker_processes while its database has work to do. One that has the locks of bridges stays, and is not counted.",
        &MAX_WORKERS,
        (1, 1_000),
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"eskit_lease.worker",
        c"Whether the background worker hands over leases, sweeps and notifies.",
        c"With it off every function still answers right; waiting sessions are served by their own calls.",
        &WORKER,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_enum_guc(
        c"eskit_lease.notify",
        c"Whether changes of owners are sent to the listeners of the channel eskit_lease.",
        c"PostgreSQL cannot tell whether there are listeners. With auto, changes are sent while a listener asks for that by notify_me(). May be set for a database, by a superuser.",
        &NOTIFY,
        GucContext::Suset,
        GucFlags::empty(),
    );
}

fn define_retention() {
    int(
        c"eskit_lease.row_retention",
        c"How long to keep the row of a released lease.",
        c"It shows the last fence of the resource. Fences never repeat, whether the row is kept or not. Claims of work items whose end no call has seen are kept as long.",
        &ROW_RETENTION,
        (0, 2_147_483),
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    int(
        c"eskit_lease.history_retention",
        c"How long the history keeps who lost which lease, and how; 0 for not at all.",
        c"Each row of the view history takes about 200 bytes. -1 keeps them without end.",
        &HISTORY_RETENTION,
        (-1, i32::MAX),
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_enum_guc(
        c"eskit_lease.log_ends",
        c"The level at which the log tells of sessions that have expired or were taken over.",
        c"One line a second at most in a database, which counts: a storm has few lines.",
        &LOG_ENDS,
        GucContext::Suset,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"eskit_lease.history_grants",
        c"Whether the history also keeps ordinary grants and releases.",
        c"Each then writes one row more.",
        &HISTORY_GRANTS,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    int(
        c"eskit_lease.execution_retention",
        c"How long to keep a run-once key that is done or resolved.",
        c"A key that is removed is free again. -1 keeps them without end.",
        &EXECUTION_RETENTION,
        (-1, i32::MAX),
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    // The default removes dead items, as users of River and Oban expect: otherwise only the drop of their queue would.
    // It is longer than River's week, because each dead item is work that has not been done.
    int(
        c"eskit_lease.dead_item_retention",
        c"How long to keep a dead work item.",
        c"It can be seen, and requeued, until it is removed. -1 keeps them without end.",
        &DEAD_ITEM_RETENTION,
        (-1, i32::MAX),
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
}

fn define_checks() {
    GucRegistry::define_bool_guc(
        c"eskit_lease.fence_superusers",
        c"Whether fenced tables are guarded against superusers too.",
        c"With it off a superuser may repair a table without the lease.",
        &FENCE_SUPERUSERS,
        GucContext::Suset,
        GucFlags::empty(),
    );
    GucRegistry::define_bool_guc(
        c"eskit_lease.declared_names",
        c"Whether only declared names may be leased.",
        c"A name in another case, or with a blank, is another lease. Names are declared by lease_declare(), or with a semaphore or a bridge. May be set for a database or a role, by a superuser.",
        &DECLARED_NAMES,
        GucContext::Suset,
        GucFlags::empty(),
    );
}

fn int(
    name: &'static std::ffi::CStr,
    short: &'static std::ffi::CStr,
    long: &'static std::ffi::CStr,
    setting: &'static GucSetting<i32>,
    (min, max): (i32, i32),
    context: GucContext,
    flags: GucFlags,
) {
    GucRegistry::define_int_guc(name, short, long, setting, min, max, context, flags);
}
