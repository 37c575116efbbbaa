-- The rows: all that must survive. Liveness is in shared memory (src/shmem), so a heartbeat writes no row. Only the
-- functions write rows, and check their arguments; PostgreSQL would parse a CHECK anew for each statement.
--
-- A plain CREATE, not IF NOT EXISTS: the owner of an existing schema of this name could have put objects into it, or
-- dropped objects from it. So PostgreSQL refuses it with 42P06.
CREATE SCHEMA eskit_lease;

-- CACHE 1, since a fence drawn later must be greater, whichever connection draws it.
CREATE SEQUENCE eskit_lease.fence_seq AS bigint INCREMENT 64 CACHE 1; -- as in src/shmem/pace.rs

-- Fences below the value of _refence are former ones (src/lease/refence.rs). The other sequences are for positions
-- (src/position/mod.rs). They are sequences because a rollback does not undo setval.
CREATE SEQUENCE eskit_lease._refence AS bigint MINVALUE 0 START 0;
CREATE SEQUENCE eskit_lease.position_base AS bigint MINVALUE 0 START 0;
CREATE SEQUENCE eskit_lease.position_high AS bigint MINVALUE 0 START 0;
CREATE SEQUENCE eskit_lease.position_cluster AS bigint MINVALUE -9223372036854775808 START 0;
-- Not dumped: an id of a transaction of this cluster.
CREATE SEQUENCE eskit_lease.position_since AS bigint MINVALUE 0 START 0;
-- Not dumped: a restored extension is another one.
CREATE SEQUENCE eskit_lease.position_origin AS bigint MINVALUE 0 START 0;
SELECT pg_catalog.setval('eskit_lease.position_origin', ('x' || pg_catalog.substr(pg_catalog.md5(pg_catalog.gen_random_uuid()::text), 1, 15))::bit(60)::bigint);

-- src/session/row.rs, src/lease/row.rs and src/lease/line/places.rs read columns by their number.
CREATE TABLE eskit_lease._sessions (
    session   uuid PRIMARY KEY,
    consumer  text COLLATE "C" NOT NULL,
    role      oid NOT NULL,
    ttl_ms    integer NOT NULL,
    boot_id   bigint NOT NULL,
    opened_at timestamptz NOT NULL,
    draining  boolean NOT NULL DEFAULT false,
    private   boolean NOT NULL DEFAULT false,
    request   uuid,
    -- Of a private session: the session that may acquire its lease in grace, and the one that released the lease
    -- (src/lease/grace.rs).
    grace_of  uuid,
    fencer    uuid,
    -- Who opened it, as pg_stat_activity shows it. NULL in a row of a version before 0.3.0.
    address          inet DEFAULT pg_catalog.inet_client_addr(),
    application_name text COLLATE "C" DEFAULT pg_catalog.current_setting('application_name'),
    login            text COLLATE "C" DEFAULT session_user
);
CREATE INDEX _sessions_grace_of ON eskit_lease._sessions (grace_of) WHERE grace_of IS NOT NULL;
-- The session that a call of lock_acquire is asked for again (src/lease/lock.rs).
CREATE INDEX _sessions_request ON eskit_lease._sessions (request) WHERE request IS NOT NULL;
CREATE INDEX _sessions_consumer ON eskit_lease._sessions (consumer, role, opened_at) WHERE NOT private;

-- The session that took over another one, which has ended (src/ending/takeover.rs).
CREATE TABLE eskit_lease._successions (
    session   uuid PRIMARY KEY,
    successor uuid NOT NULL
);
CREATE INDEX _successions_successor ON eskit_lease._successions (successor);

-- Sessions that are dead although they have a row, since something was taken from them (src/session/death.rs). No
-- unique key: the taker must not wait for another one.
CREATE TABLE eskit_lease._deaths (
    session uuid NOT NULL
);
CREATE INDEX _deaths_session ON eskit_lease._deaths (session);
-- The table has no key. Without this, no row could be deleted while a publication FOR ALL TABLES exists.
ALTER TABLE eskit_lease._deaths REPLICA IDENTITY FULL;

-- Names that are not exclusive leases. The owner is stored by name, since roles may have other oids where a dump is
-- restored.
CREATE TABLE eskit_lease._declarations (
    resource text COLLATE "C" NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    slots    integer NOT NULL,
    owner    text COLLATE "C" NOT NULL,
    -- Grows with each declaration of a name, so the last declaration is at the end of the key
    -- (src/lease/declaration.rs).
    number   bigint NOT NULL DEFAULT nextval('eskit_lease.fence_seq'),
    PRIMARY KEY (resource, number)
);

-- Names that may be leased where only declared ones may (src/lease/names.rs). Owner and number as in _declarations.
CREATE TABLE eskit_lease._lease_names (
    name   text COLLATE "C" NOT NULL,
    prefix boolean NOT NULL,
    owner  text COLLATE "C" NOT NULL,
    number bigint NOT NULL DEFAULT nextval('eskit_lease.fence_seq'),
    PRIMARY KEY (name, number)
);

-- Bridges; each is in _declarations too.
CREATE TABLE eskit_lease._bridges (
    resource     text COLLATE "C" PRIMARY KEY,
    lock_key     bigint,
    -- For a bridge to a row: its table, the value of its primary key as text, and the columns by which old workers
    -- lease it.
    target       regclass,
    key          text COLLATE "C",
    owner_column text COLLATE "C",
    until_column text COLLATE "C",
    -- Why the worker cannot keep the row, if it cannot.
    trouble      text COLLATE "C",
    UNIQUE (target, key),
    CHECK (num_nonnulls(lock_key, target) = 1 AND num_nulls(target, key, owner_column, until_column) IN (0, 4))
);

-- No foreign key to _sessions: a lease whose session has no row is free, in every query.
CREATE TABLE eskit_lease._leases (
    resource    text COLLATE "C" NOT NULL,
    slot        integer NOT NULL,
    session     uuid,
    fence       bigint NOT NULL,
    timeline    integer NOT NULL,
    granted_at  timestamptz NOT NULL,
    released_at timestamptz,
    expired     boolean NOT NULL DEFAULT false,
    -- Whether the name is a semaphore, a group or a bridge. If not, a reader of the row need not look up a declaration.
    declared    boolean NOT NULL DEFAULT false
);
-- src/lease/grant.rs makes sure that a seat has one row. For a unique key PostgreSQL would look at all versions of the
-- row with each change (src/lease/row.rs).
CREATE INDEX _leases_seat ON eskit_lease._leases (resource, slot, fence);
-- As for _deaths.
ALTER TABLE eskit_lease._leases REPLICA IDENTITY FULL;
CREATE INDEX _leases_session ON eskit_lease._leases (session, resource, slot) WHERE session IS NOT NULL;
-- A fence of slot 0 is found by the name; that of another slot, by this index.
CREATE INDEX _leases_fence ON eskit_lease._leases (resource, fence) WHERE slot > 0;
-- Finds the free permits of a semaphore among many others; the one granted last comes last.
CREATE INDEX _leases_free ON eskit_lease._leases (resource, fence) WHERE session IS NULL AND declared;
CREATE INDEX _leases_released_at ON eskit_lease._leases (released_at) WHERE session IS NULL;

-- What became of leases (src/lease/history.rs). No unique key: a writer must not wait for another one.
CREATE TABLE eskit_lease._history (
    at            timestamptz NOT NULL,
    event         text COLLATE "C" NOT NULL,
    resource      text COLLATE "C" NOT NULL,
    slot          integer NOT NULL,
    fence         bigint NOT NULL,
    consumer      text COLLATE "C",
    next_consumer text COLLATE "C",
    next_fence    bigint,
    forced_by     text COLLATE "C",
    why           text,
    ended_at      timestamptz
);
CREATE INDEX _history_at ON eskit_lease._history (at);
-- As for _deaths.
ALTER TABLE eskit_lease._history REPLICA IDENTITY FULL;

-- No unique key on (resource, session): it would make one call wait for another's uncommitted place. A second place of
-- the same session is harmless; a grant deletes both.
CREATE TABLE eskit_lease._waiters (
    place     bigint GENERATED ALWAYS AS IDENTITY,
    resource  text COLLATE "C" NOT NULL,
    session   uuid NOT NULL,
    queued_at timestamptz NOT NULL,
    PRIMARY KEY (resource, place)
);
CREATE INDEX _waiters_session ON eskit_lease._waiters (session, resource, place);

CREATE TABLE eskit_lease._groups (
    group_name           text COLLATE "C" PRIMARY KEY,
    assignor             text COLLATE "C" NOT NULL,
    rebalance_timeout_ms integer NOT NULL,
    settle_delay_ms      integer NOT NULL,
    generation           bigint NOT NULL DEFAULT 0,
    -- Whether the group's settings or members have changed in a way that requires new targets.
    stale                boolean NOT NULL DEFAULT false,
    -- The number of partitions that the group gets once no session owns any.
    resize_to            integer
) WITH (fillfactor = 10); -- few rows, and each rebalance changes one (a HOT update)

-- counted: how the targets take the member into account: it may get partitions (active), or only keeps them (draining);
-- NULL for a newcomer. joined: microseconds on the clock of shared memory, in the start boot_id. src/group makes sure
-- that a session is a member of a group once.
CREATE TABLE eskit_lease._members (
    group_name text COLLATE "C" NOT NULL,
    session    uuid NOT NULL,
    joined_at  timestamptz NOT NULL,
    joined     bigint NOT NULL,
    boot_id    bigint NOT NULL,
    counted    text COLLATE "C",
    place      bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (group_name, place)
);
CREATE INDEX _members_session ON eskit_lease._members (session, group_name, place);

-- The target of each partition. revoking: the fence whose owner has been asked to release; revoke_at: the deadline, on
-- the same clock as joined.
CREATE TABLE eskit_lease._partitions (
    group_name text COLLATE "C" NOT NULL,
    partition  integer NOT NULL,
    target     uuid,
    revoking   bigint,
    revoke_at  bigint,
    boot_id    bigint,
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50); -- as for _items

-- acked: positions beyond the cursor that have been acknowledged already.
CREATE TABLE eskit_lease._cursors (
    group_name   text COLLATE "C" NOT NULL,
    partition    integer NOT NULL,
    position     bigint NOT NULL,
    acked        int8multirange NOT NULL DEFAULT '{}',
    fence        bigint NOT NULL,
    committed_at timestamptz NOT NULL,
    PRIMARY KEY (group_name, partition)
);
-- Not compressed: with thousands of ranges, compression would take most of the time of an acknowledgement.
ALTER TABLE eskit_lease._cursors ALTER COLUMN acked SET STORAGE EXTERNAL;

-- The newest positions that producers report. A table of its own, so that a report does not wait for a transaction that
-- commits a cursor.
CREATE TABLE eskit_lease._heads (
    group_name  text COLLATE "C" NOT NULL,
    partition   integer NOT NULL,
    position    bigint NOT NULL,
    -- The group's number of partitions at that time: after a resize the report means nothing.
    partitions  integer NOT NULL,
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (group_name, partition)
);

-- Queues of work items, a name space of their own (src/item/). The owner is a name, as above; partitions are those of the group.
CREATE SEQUENCE eskit_lease._queue_seq AS integer;
CREATE TABLE eskit_lease._queues (
    queue        text COLLATE "C" PRIMARY KEY,
    number       integer NOT NULL,
    max_attempts integer NOT NULL,
    backoff_ms   integer NOT NULL,
    ordering     text COLLATE "C" NOT NULL,
    owner        text COLLATE "C" NOT NULL,
    group_name   text COLLATE "C"
);
CREATE INDEX _queues_number ON eskit_lease._queues (number);
CREATE INDEX _queues_group_name ON eskit_lease._queues (group_name) WHERE group_name IS NOT NULL;

-- Items that are ready or claimed. claim: the fence of the claim, or 0, so that a claim does not change the row's
-- length. No index has the columns that a claim changes, and pages are left half empty: so a claim changes no index (a
-- HOT update).
CREATE SEQUENCE eskit_lease._item_seq AS bigint INCREMENT 64;
CREATE TABLE eskit_lease._items (
    queue     integer NOT NULL,
    partition integer NOT NULL,
    place     bigint NOT NULL,
    id        bigint NOT NULL,
    claim     bigint NOT NULL DEFAULT 0,
    attempt   integer NOT NULL DEFAULT 0,
    added_at  timestamptz NOT NULL,
    key       text COLLATE "C",
    error     text,
    payload   jsonb NOT NULL,
    PRIMARY KEY (queue, partition, place)
) WITH (fillfactor = 50);
-- This index and _later_key find the next item of a key (src/item/next.rs).
CREATE INDEX _items_key ON eskit_lease._items (queue, partition, key, place) WHERE key IS NOT NULL;

-- Items that wait for their time; those whose time has come stay here until they are claimed. due: microseconds since
-- 2000.
CREATE TABLE eskit_lease._later (
    queue     integer NOT NULL,
    partition integer NOT NULL,
    due       bigint NOT NULL,
    id        bigint NOT NULL,
    attempt   integer NOT NULL DEFAULT 0,
    added_at  timestamptz NOT NULL,
    key       text COLLATE "C",
    error     text,
    payload   jsonb NOT NULL,
    PRIMARY KEY (queue, partition, due, id)
);
CREATE INDEX _later_key ON eskit_lease._later (queue, partition, key, due) WHERE key IS NOT NULL;

-- One row for each item_claim that got something. partitions: NULL where all are 0; ids: NULL where they are the places.
CREATE TABLE eskit_lease._claims (
    fence      bigint PRIMARY KEY,
    session    uuid NOT NULL,
    queue      integer NOT NULL,
    claimed_at timestamptz NOT NULL,
    places     bigint[] NOT NULL,
    partitions integer[],
    ids        bigint[],
    -- The queue's ordering; NULL for none.
    ordering   text COLLATE "C"
);
CREATE INDEX _claims_session ON eskit_lease._claims (session);

-- Which item of a key goes first (src/item/heads.rs). lane: a hash of the key; since grows within a lane. The item is
-- in _items at its place; if place is NULL, it is in _later, and due at due.
CREATE TABLE eskit_lease._item_heads (
    queue     integer NOT NULL,
    lane      integer NOT NULL,
    since     bigint NOT NULL,
    partition integer NOT NULL,
    id        bigint NOT NULL,
    place     bigint,
    due       bigint,
    key       text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, lane, since)
);

CREATE TABLE eskit_lease._dead_items (
    id       bigint PRIMARY KEY,
    queue    integer NOT NULL,
    attempt  integer NOT NULL,
    added_at timestamptz NOT NULL,
    died_at  timestamptz NOT NULL,
    key      text COLLATE "C",
    error    text NOT NULL,
    payload  jsonb NOT NULL
);
CREATE INDEX _dead_items_queue ON eskit_lease._dead_items (queue, id);
CREATE INDEX _dead_items_died_at ON eskit_lease._dead_items (died_at);

-- src/execution reads columns by their number. state: running, done, failed, or retry (free for another attempt). A key
-- is in doubt if its state is running and its session is dead. Roles are stored by name, as in _declarations.
CREATE TABLE eskit_lease._executions (
    key            text COLLATE "C" NOT NULL,
    state          text COLLATE "C" NOT NULL,
    session        uuid NOT NULL,
    consumer       text COLLATE "C" NOT NULL,
    role           text COLLATE "C" NOT NULL,
    fence          bigint NOT NULL,
    attempts       integer NOT NULL,
    retry_in_doubt boolean NOT NULL,
    started_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    result         jsonb,
    error          text,
    resolved_by    text COLLATE "C",
    resolved_at    timestamptz,
    -- src/execution makes sure that a key has one row; its last version is at the end of this index.
    PRIMARY KEY (key, fence)
);
CREATE INDEX _executions_ended_at ON eskit_lease._executions (coalesce(resolved_at, finished_at))
    WHERE state = 'done' OR resolved_at IS NOT NULL;
-- For the view executions: the few keys that are not done, among millions.
CREATE INDEX _executions_open ON eskit_lease._executions (state, started_at) WHERE state <> 'done';

-- The answers of functions with one row. src/pg/row.rs says why these are types.
CREATE TYPE eskit_lease.opened_session AS (session uuid, trust_ms integer, expires_at timestamptz, revision bigint);
CREATE TYPE eskit_lease.session_state AS (alive boolean, trust_ms integer, expires_at timestamptz, revision bigint, reason text, retry_ms integer);
CREATE TYPE eskit_lease.sweep_result AS (ended integer, handed_over integer, more boolean);
CREATE TYPE eskit_lease.lease_answer AS (granted boolean, fence bigint, slot integer, holder text, trust_ms integer, reason text, revision bigint);
CREATE TYPE eskit_lease.lease_state AS (held boolean, trust_ms integer, expires_at timestamptz, reason text, holder text);
CREATE TYPE eskit_lease.execution_answer AS (first boolean, state text, fence bigint, result jsonb, started_at timestamptz, revision bigint);
CREATE TYPE eskit_lease._session_standing AS (state text, trust_ms integer, expires_at timestamptz, revision bigint, attached_pid integer);
CREATE TYPE eskit_lease._item_counts AS (items bigint, later bigint, dead bigint, counted_at timestamptz, ready_since timestamptz);
CREATE TYPE eskit_lease._held_count AS (held bigint, counted_at timestamptz);

-- Dumped is only what a restored database needs. With the sequences, fences and positions go on above those already
-- given. Sessions, leases, waiters and members belong to the server that made them, so running keys are in doubt.
SELECT pg_catalog.pg_extension_config_dump('eskit_lease.fence_seq', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease.position_base', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease.position_high', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease.position_cluster', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._declarations', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._groups', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._cursors', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._queue_seq', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._queues', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._item_seq', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._items', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._later', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._item_heads', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._dead_items', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._executions', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._bridges', '');
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._lease_names', '');

COMMENT ON SCHEMA eskit_lease IS 'competing consumers: sessions, leases with fencing tokens, hand-over in milliseconds';
COMMENT ON SEQUENCE eskit_lease.fence_seq IS 'Private: source of fences; never falls.';
COMMENT ON SEQUENCE eskit_lease._refence IS 'Private: the fence below which holders are to get new ones.';
COMMENT ON SEQUENCE eskit_lease.position_base IS 'Private: what is added to the id of a transaction to make its positions.';
COMMENT ON SEQUENCE eskit_lease.position_high IS 'Private: up to where positions may have been given; never falls.';
COMMENT ON SEQUENCE eskit_lease.position_cluster IS 'Private: the history that position_base is right for.';
COMMENT ON SEQUENCE eskit_lease.position_since IS 'Private: the transaction from which on position_base is right for certain.';
COMMENT ON SEQUENCE eskit_lease.position_origin IS 'Private: a random number, by which this extension is told from those that dumps are of.';
COMMENT ON TABLE eskit_lease._sessions IS 'Private: rows of sessions; see the view sessions.';
COMMENT ON TABLE eskit_lease._leases IS 'Private: rows of leases; see the view leases.';
COMMENT ON TABLE eskit_lease._successions IS 'Private: who takes over what is left of ended sessions.';
COMMENT ON TABLE eskit_lease._deaths IS 'Private: sessions that no restart revives.';
COMMENT ON TABLE eskit_lease._declarations IS 'Private: names of semaphores, groups and bridges.';
COMMENT ON TABLE eskit_lease._lease_names IS 'Private: names of leases; see the view declared_names.';
COMMENT ON TABLE eskit_lease._bridges IS 'Private: locks and rows that names are bridged to; see the view bridges.';
COMMENT ON TABLE eskit_lease._history IS 'Private: what became of leases; see the view history.';
COMMENT ON TABLE eskit_lease._groups IS 'Private: settings and generation of groups; see the view groups.';
COMMENT ON TABLE eskit_lease._members IS 'Private: sessions in groups; see the view group_members.';
COMMENT ON TABLE eskit_lease._partitions IS 'Private: who is to own what; see the view group_partitions.';
COMMENT ON TABLE eskit_lease._cursors IS 'Private: how far groups have come; see the view group_lag.';
COMMENT ON TABLE eskit_lease._heads IS 'Private: newest positions reported; see the view group_lag.';
COMMENT ON TABLE eskit_lease._waiters IS 'Private: places in queues; see the view waiters.';
COMMENT ON SEQUENCE eskit_lease._queue_seq IS 'Private: numbers of queues.';
COMMENT ON SEQUENCE eskit_lease._item_seq IS 'Private: places of work items.';
COMMENT ON TABLE eskit_lease._queues IS 'Private: queues of work items; see the view queues.';
COMMENT ON TABLE eskit_lease._items IS 'Private: work items that are ready or claimed; see the view items.';
COMMENT ON TABLE eskit_lease._later IS 'Private: work items whose time has not come; see the view items.';
COMMENT ON TABLE eskit_lease._claims IS 'Private: who has claimed which work items; see the view items.';
COMMENT ON TABLE eskit_lease._item_heads IS 'Private: which work item of each key goes first.';
COMMENT ON TABLE eskit_lease._dead_items IS 'Private: work items that are tried no more; see the view dead_items.';
COMMENT ON TABLE eskit_lease._executions IS 'Private: run-once keys; see the view executions.';

COMMENT ON TYPE eskit_lease.opened_session IS 'What session_open() answers.';
COMMENT ON COLUMN eskit_lease.opened_session.session IS 'The handle of the session, for the other functions.';
COMMENT ON COLUMN eskit_lease.opened_session.trust_ms IS 'Milliseconds until the session expires unless it beats; count them from before the call, on a monotonic clock.';
COMMENT ON COLUMN eskit_lease.opened_session.expires_at IS 'The same on the server''s clock, for people.';
COMMENT ON COLUMN eskit_lease.opened_session.revision IS 'Grows with each change of what the session holds or waits for; for session_wait().';
COMMENT ON TYPE eskit_lease.session_state IS 'What session_heartbeat() and session_wait() answer.';
COMMENT ON COLUMN eskit_lease.session_state.alive IS 'Whether the session lives; false is for good.';
COMMENT ON COLUMN eskit_lease.session_state.trust_ms IS 'Milliseconds until the session expires unless it beats; count them from before the call, on a monotonic clock. NULL if it does not live.';
COMMENT ON COLUMN eskit_lease.session_state.expires_at IS 'The same on the server''s clock, for people.';
COMMENT ON COLUMN eskit_lease.session_state.revision IS 'Grows with each change of what the session holds or waits for; for session_wait().';
COMMENT ON COLUMN eskit_lease.session_state.reason IS 'Why: the words are in the comments of session_heartbeat() and session_wait().';
COMMENT ON COLUMN eskit_lease.session_state.retry_ms IS 'With wait_limit: how many milliseconds to sleep before the next call; else NULL.';
COMMENT ON TYPE eskit_lease.sweep_result IS 'What session_sweep() answers.';
COMMENT ON COLUMN eskit_lease.sweep_result.ended IS 'Sessions whose last row has been taken away.';
COMMENT ON COLUMN eskit_lease.sweep_result.handed_over IS 'Leases handed over.';
COMMENT ON COLUMN eskit_lease.sweep_result.more IS 'Whether there is more to do, or something was in somebody''s hands.';
COMMENT ON TYPE eskit_lease.lease_answer IS 'What lease_acquire() and lock_acquire() answer.';
COMMENT ON COLUMN eskit_lease.lease_answer.granted IS 'Whether the caller holds the lease.';
COMMENT ON COLUMN eskit_lease.lease_answer.fence IS 'The fencing token of the grant, greater than all before. NULL unless granted.';
COMMENT ON COLUMN eskit_lease.lease_answer.slot IS 'Which permit of a semaphore; 0 for a plain resource. NULL unless granted.';
COMMENT ON COLUMN eskit_lease.lease_answer.holder IS 'The consumer that holds it.';
COMMENT ON COLUMN eskit_lease.lease_answer.trust_ms IS 'Milliseconds for which the lease is held unless the session beats. NULL unless granted.';
COMMENT ON COLUMN eskit_lease.lease_answer.reason IS 'Why: the words are in the comment of lease_acquire().';
COMMENT ON COLUMN eskit_lease.lease_answer.revision IS 'The revision of the session from before the call looked: a session_wait() on it misses no change since. NULL for lock_acquire(), and for a session that does not live.';
COMMENT ON TYPE eskit_lease.lease_state IS 'What lease_renew() answers.';
COMMENT ON COLUMN eskit_lease.lease_state.held IS 'Whether the lease is held still, under this fence.';
COMMENT ON COLUMN eskit_lease.lease_state.trust_ms IS 'Milliseconds for which it is held unless the session beats. NULL unless held.';
COMMENT ON COLUMN eskit_lease.lease_state.expires_at IS 'The same on the server''s clock, for people.';
COMMENT ON COLUMN eskit_lease.lease_state.reason IS 'Why: the words are in the comment of lease_renew().';
COMMENT ON COLUMN eskit_lease.lease_state.holder IS 'The consumer that has the lease, under this fence or a later one; NULL if there is none or it is not known.';
COMMENT ON TYPE eskit_lease.execution_answer IS 'What execution_begin() answers.';
COMMENT ON COLUMN eskit_lease.execution_answer.first IS 'Whether the caller is the one to run this attempt.';
COMMENT ON COLUMN eskit_lease.execution_answer.state IS 'running, done, failed or in_doubt.';
COMMENT ON COLUMN eskit_lease.execution_answer.fence IS 'The fence of the attempt, for the session that runs it; NULL for others.';
COMMENT ON COLUMN eskit_lease.execution_answer.result IS 'The result, once it is done.';
COMMENT ON COLUMN eskit_lease.execution_answer.started_at IS 'When the attempt was begun; NULL while that is not committed.';
COMMENT ON COLUMN eskit_lease.execution_answer.revision IS 'The revision of the session from before the call looked: a session_wait() on it misses no change since.';
COMMENT ON TYPE eskit_lease._session_standing IS 'Internal: what shared memory says of a session.';
COMMENT ON TYPE eskit_lease._item_counts IS 'Internal: how many items a queue has.';
COMMENT ON TYPE eskit_lease._held_count IS 'Internal: how many leases are held.';
