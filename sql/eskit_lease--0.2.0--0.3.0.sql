-- From 0.2.0 to 0.3.0. The server must run the library of 0.3.0.
SELECT eskit_lease._require_library('0.3.0');

-- Keeps the functions and tables of 0.2.0 with their privileges, for the last block of this script.
SELECT set_config('eskit_lease_update.former', jsonb_object_agg(o.kind || ' ' || o.oid, to_jsonb(o))::text, true)
FROM (SELECT 'FUNCTION' AS kind, p.oid, p.proname AS name, p.proacl::text AS acl, i.initprivs::text AS initial
      FROM pg_proc AS p
      LEFT JOIN pg_init_privs AS i ON i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass
      WHERE p.pronamespace = 'eskit_lease'::regnamespace
      UNION ALL
      SELECT 'TABLE', c.oid, c.relname, c.relacl::text, i.initprivs::text
      FROM pg_class AS c
      LEFT JOIN pg_init_privs AS i ON i.objoid = c.oid AND i.classoid = 'pg_class'::regclass AND i.objsubid = 0
      WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind IN ('r', 'v', 'S')) AS o;

-- This script drops functions whose arguments change, and makes them anew. If a user's object depends on one, the
-- update is refused.
DO $$
DECLARE
    dependents text;
BEGIN
    SELECT string_agg(DISTINCT format('%s depends on function eskit_lease.%s',
               CASE WHEN r.oid IS NULL THEN pg_describe_object(d.classid, d.objid, d.objsubid) ELSE pg_describe_object('pg_class'::regclass, r.ev_class, 0) END,
               p.proname), E'\n')
    INTO dependents
    FROM pg_depend AS d
    JOIN pg_proc AS p ON p.oid = d.refobjid
    LEFT JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
    WHERE d.refclassid = 'pg_proc'::regclass AND d.deptype IN ('n', 'a') AND p.pronamespace = 'eskit_lease'::regnamespace
      AND p.proname IN ('cursor_commit', 'partition_assign', 'semaphore_drop', 'group_drop', 'queue_drop', 'bridge_drop');
    IF dependents IS NOT NULL THEN
        RAISE 'cannot update eskit_lease because other objects depend on functions that have other arguments from 0.3.0 on' USING
            ERRCODE = 'dependent_objects_still_exist', DETAIL = dependents, HINT = 'Drop these objects, update, and make them anew.';
    END IF;
    -- A type cannot get another column while a table has a column of that type. Views and functions keep the former
    -- columns.
    SELECT string_agg(format('%s is of type eskit_lease.%s', pg_describe_object('pg_class'::regclass, a.attrelid, a.attnum), t.typname), E'\n'
               ORDER BY a.attrelid, a.attnum)
    INTO dependents
    FROM pg_type AS t
    JOIN pg_attribute AS a ON a.atttypid IN (t.oid, t.typarray)
    JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind IN ('r', 'm', 'p')
    WHERE t.typnamespace = 'eskit_lease'::regnamespace AND t.typname IN ('lease_answer', 'lease_state', 'execution_answer');
    IF dependents IS NOT NULL THEN
        RAISE 'cannot update eskit_lease because columns have types that have more columns from 0.3.0 on' USING
            ERRCODE = 'dependent_objects_still_exist', DETAIL = dependents, HINT = 'Drop these columns, update, and make them anew.';
    END IF;
END $$;

-- cursor_commit gets the argument `expected`.
DROP FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint);
CREATE FUNCTION eskit_lease.cursor_commit(group_name text, partition integer, "position" bigint, fence bigint, expected bigint DEFAULT NULL) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'cursor_commit_from_wrapper';
COMMENT ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) IS
'Moves the cursor of a partition forward to position (from 1 on), with this transaction, under the partition''s fence as fence_check does. expected: where the batch began; for READ COMMITTED, where several transactions may use one fence. False if the cursor is at position already, or beyond. Raises LF001, 55P03 and 40001 as fence_check; 40001 also if another transaction under this fence has moved the cursor since this one''s snapshot, or away from expected; 22023.';

CREATE FUNCTION eskit_lease._open_transaction(xid xid) RETURNS xid LANGUAGE c STRICT AS 'MODULE_PATHNAME', '_open_transaction_wrapper';
COMMENT ON FUNCTION eskit_lease._open_transaction(xid) IS 'Internal: the open transaction that is changing a row; under the view blockers.';
REVOKE ALL ON FUNCTION eskit_lease._open_transaction(xid) FROM PUBLIC;

-- The view also shows transactions that have locked or changed the row of a lease, a group or a session.
CREATE OR REPLACE VIEW eskit_lease.blockers AS -- lock classes as in src/pg/guard.rs
SELECT CASE k.objsubid
           WHEN 4501 THEN CASE k.mode WHEN 'ShareLock' THEN 'granting to the session' ELSE 'ending the session' END
           WHEN 4502 THEN CASE k.mode WHEN 'ShareLock' THEN 'fenced by the session' ELSE 'ending the session' END
           ELSE CASE k.mode WHEN 'ShareLock' THEN 'fenced' ELSE 'releasing' END
       END AS doing,
       l.resource,
       coalesce(o.consumer, s.consumer) AS consumer,
       k.granted,
       k.pid,
       p.gid AS prepared,
       coalesce(p.prepared, a.xact_start) AS since
FROM (SELECT k.*, (k.classid::bigint << 32) | k.objid::bigint AS key
      FROM pg_locks AS k
      WHERE k.locktype = 'advisory' AND k.objsubid BETWEEN 4501 AND 4503
        AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS k
LEFT JOIN eskit_lease._leases AS l ON k.objsubid = 4503 AND l.fence = k.key
LEFT JOIN eskit_lease._sessions AS o ON o.session = l.session
-- The join is by equality, so that it can be hashed: there may be many sessions and many locks.
LEFT JOIN eskit_lease._sessions AS s
    ON ('x' || right(replace(s.session::text, '-', ''), 16))::bit(64)::bigint = CASE WHEN k.objsubid <> 4503 THEN k.key END
-- A prepared transaction has no process; it is known by the lock that it holds on its own id.
LEFT JOIN pg_locks AS x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
    AND x.virtualtransaction = k.virtualtransaction
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid
UNION ALL
-- Row locks: a release with grace or a change of a group takes no guard that the part above would show.
SELECT c.doing, c.resource, coalesce(c.consumer, o.consumer), true, x.pid, p.gid, coalesce(p.prepared, a.xact_start)
FROM (SELECT 'changing' AS doing, l.resource, NULL::text AS consumer, l.session, eskit_lease._open_transaction(l.xmax) AS xid
      FROM eskit_lease._leases AS l
      WHERE l.xmax <> '0'
      UNION ALL
      SELECT 'changing the group', g.group_name, NULL, NULL, eskit_lease._open_transaction(g.xmax)
      FROM eskit_lease._groups AS g
      WHERE g.xmax <> '0'
      UNION ALL
      SELECT CASE d.kind WHEN 'semaphore' THEN 'changing the semaphore' ELSE 'changing the bridge' END, d.resource, NULL, NULL, eskit_lease._open_transaction(d.xmax)
      FROM eskit_lease._declarations AS d
      WHERE d.kind <> 'group' AND d.xmax <> '0'
      UNION ALL
      SELECT 'changing the session', NULL, s.consumer, NULL, eskit_lease._open_transaction(s.xmax)
      FROM eskit_lease._sessions AS s
      WHERE s.xmax <> '0') AS c
JOIN pg_locks AS x ON x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted AND x.transactionid = c.xid
LEFT JOIN eskit_lease._sessions AS o ON o.session = c.session
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = c.xid
LEFT JOIN pg_stat_activity AS a ON a.pid = x.pid;

COMMENT ON COLUMN eskit_lease.items.added_at IS 'When it was added, or requeued.';

-- partition_assign gets the argument `group_name`.
DROP FUNCTION eskit_lease.partition_assign(text, text[], text[]);
CREATE FUNCTION eskit_lease.partition_assign(assignor text, members text[], owners text[], group_name text DEFAULT '') RETURNS text[] IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'partition_assign_in_wrapper';
COMMENT ON FUNCTION eskit_lease.partition_assign(text, text[], text[], text) IS
'The new owner of each partition, one of members; NULL without members. owners: the present owner of each partition, or NULL. Shares differ by at most one. Assignors: range (neighbouring partitions to each member, in the byte order of their UTF-8 ids), sticky (as few partitions move as balance allows). group_name: sticky gives the larger shares to the first members by group_lock_key(group_name || '':'' || member), to spread many groups of few partitions; if empty, the default, to members that own so many already. The order of members does not matter. Raises 22004, and 22023 for an unknown assignor, a member given twice, more than 100000 members, or not 1 to 32768 partitions.';

CREATE FUNCTION eskit_lease.group_release_many(group_name text, partitions integer[], fences bigint[]) RETURNS TABLE (partition integer, released boolean) LANGUAGE c AS 'MODULE_PATHNAME', 'group_release_many_wrapper';
COMMENT ON FUNCTION eskit_lease.group_release_many(text, integer[], bigint[]) IS
'group_release for many partitions, each with its fence, in one step: a row for each, and whether it was held. Also raises 22023 for arrays of different lengths and for a partition given twice.';

-- Sequences step by 64: the lower bits are drawn by chance at each start.
ALTER SEQUENCE eskit_lease.fence_seq INCREMENT 64;
ALTER SEQUENCE eskit_lease._item_seq INCREMENT 64;

-- Finds the free permits of a semaphore among many others.
CREATE INDEX _leases_free ON eskit_lease._leases (resource, fence) WHERE session IS NULL AND declared;

-- A row of a lease is found by its last version. Without a unique key no change has to look at all versions.
ALTER TABLE eskit_lease._leases DROP CONSTRAINT _leases_pkey;
ALTER TABLE eskit_lease._leases REPLICA IDENTITY FULL;
CREATE INDEX _leases_seat ON eskit_lease._leases (resource, slot, fence);
DROP INDEX eskit_lease._leases_session;
CREATE INDEX _leases_session ON eskit_lease._leases (session, resource, slot) WHERE session IS NOT NULL;

-- Run-once keys are found by their last version too.
ALTER TABLE eskit_lease._executions DROP CONSTRAINT _executions_pkey, ADD PRIMARY KEY (key, fence);
-- So are declarations.
ALTER TABLE eskit_lease._declarations
    DROP CONSTRAINT _declarations_pkey,
    ADD COLUMN number bigint NOT NULL DEFAULT nextval('eskit_lease.fence_seq'),
    ADD PRIMARY KEY (resource, number);

-- A change of a group or a target changes no index (a HOT update).
ALTER TABLE eskit_lease._groups SET (fillfactor = 10);
ALTER TABLE eskit_lease._partitions SET (fillfactor = 50);
DROP INDEX eskit_lease._partitions_target;
ALTER TABLE eskit_lease._members
    DROP CONSTRAINT _members_pkey,
    ADD COLUMN place bigint GENERATED ALWAYS AS IDENTITY,
    ADD PRIMARY KEY (group_name, place);
DROP INDEX eskit_lease._members_session;
CREATE INDEX _members_session ON eskit_lease._members (session, group_name, place);
CREATE OR REPLACE VIEW eskit_lease.group_members AS
SELECT m.group_name,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN m.session END AS session,
       pg_get_userbyid(s.role) AS role,
       coalesce(CASE WHEN s.draining AND t.state = 'alive' THEN 'draining' ELSE t.state END, 'expired') AS state,
       m.joined_at,
       (SELECT count(*) FROM eskit_lease._leases AS l WHERE l.session = m.session AND l.resource = m.group_name) AS partitions,
       coalesce(p.targets, 0) AS targets
FROM pg_extension AS e
CROSS JOIN eskit_lease._members AS m
LEFT JOIN (SELECT p.group_name, p.target, count(*) AS targets FROM eskit_lease._partitions AS p GROUP BY 1, 2) AS p
    ON p.group_name = m.group_name AND p.target = m.session
LEFT JOIN eskit_lease._sessions AS s ON s.session = m.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
WHERE e.extname = 'eskit_lease';

CREATE OR REPLACE VIEW eskit_lease.group_partitions AS
SELECT g.group_name,
       n.partition,
       CASE WHEN l.session IS NULL THEN 'free'
            WHEN coalesce(t.state, 'expired') = 'expired' THEN 'expired'
            WHEN s.draining OR p.target IS DISTINCT FROM l.session AND (p.revoking = l.fence OR p.target IS NOT NULL)
            THEN 'revoking'
            ELSE 'owned' END AS state,
       s.consumer AS owner,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN l.session END AS session,
       l.fence,
       l.granted_at,
       o.consumer AS target,
       CASE WHEN l.session IS NOT NULL AND p.revoking = l.fence
            THEN eskit_lease._revoke_in(p.revoke_at, p.boot_id, g.rebalance_timeout_ms) END AS revoke_in
FROM pg_extension AS e
CROSS JOIN eskit_lease._groups AS g
JOIN eskit_lease._declarations AS d ON d.resource = g.group_name
CROSS JOIN LATERAL generate_series(0, d.slots - 1) AS n (partition)
LEFT JOIN eskit_lease._partitions AS p ON p.group_name = g.group_name AND p.partition = n.partition
LEFT JOIN eskit_lease._leases AS l ON l.resource = g.group_name AND l.slot = n.partition
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
LEFT JOIN eskit_lease._sessions AS o ON o.session = p.target
WHERE e.extname = 'eskit_lease';

-- With these indexes, former sessions and places are not looked at.
DROP INDEX eskit_lease._sessions_consumer;
CREATE INDEX _sessions_consumer ON eskit_lease._sessions (consumer, role, opened_at) WHERE NOT private;
CREATE INDEX _sessions_request ON eskit_lease._sessions (request) WHERE request IS NOT NULL;
DROP INDEX eskit_lease._waiters_session;
CREATE INDEX _waiters_session ON eskit_lease._waiters (session, resource, place);

-- Fences below the value of this sequence are former ones (src/lease/refence.rs).
CREATE SEQUENCE eskit_lease._refence AS bigint MINVALUE 0 START 0;
COMMENT ON SEQUENCE eskit_lease._refence IS 'Private: the fence below which holders are to get new ones.';
CREATE FUNCTION eskit_lease.lease_refence_all() RETURNS bigint STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'lease_refence_all_wrapper';
COMMENT ON FUNCTION eskit_lease.lease_refence_all() IS
'Gives every holder in this database a new fence, as after a promotion: lease_renew answers refence, lease_acquire gives the new fence (refenced), and partitions are given out anew. Returns the first new fence. For a server that was started from a storage snapshot, which the server cannot tell from a crash. Takes effect at once, even if this transaction rolls back; what is held stays held. Writes to the server log. Raises 25006. For administrators.';

-- COMMENTs name the reason `sessions_full`.
COMMENT ON FUNCTION eskit_lease.session_heartbeat(uuid) IS
'Keeps the session, and with it every lease that it holds, for another TTL. Writes no row and no WAL. Reasons: alive, uncommitted (the transaction that opens it is another one, and has not committed; or this one, after a third of the TTL, has uncommitted work for it: autocommit is off), unconfirmed (trust_ms is 0 until synchronous standbys have confirmed that this is the primary, see eskit_lease.confirm_interval), sessions_full (since a restart or promotion no slot of eskit_lease.max_sessions is free: it keeps what it holds for trust_ms, and no longer), closing (its end is being committed), expired (for good, unless the server crashes before anything is taken from it), unknown_session. Raises 42501 for another role''s session.';
COMMENT ON FUNCTION eskit_lease.session_wait(uuid, bigint, interval) IS
'A heartbeat that answers once the revision of the session is greater than the one given, at the timeout (default and limit eskit_lease.max_wait), or in time for the next heartbeat: the later this one came, the sooner. revision: one from before the caller asked for what it waits for. Reasons: changed, timeout, heartbeat, uncommitted, unconfirmed, sessions_full (as for session_heartbeat), wait_limit (too many calls wait, or this one came after more than half of the TTL; answered at once: sleep for retry_ms), closing, expired, unknown_session.';
ALTER TYPE eskit_lease.session_state ADD ATTRIBUTE retry_ms integer;
COMMENT ON COLUMN eskit_lease.session_state.retry_ms IS 'With wait_limit: how many milliseconds to sleep before the next call; else NULL.';
CREATE FUNCTION eskit_lease.session_wait_many(sessions uuid[], revisions bigint[], timeout interval DEFAULT NULL) RETURNS TABLE (session uuid, alive boolean, trust_ms integer, expires_at timestamptz, revision bigint, reason text, retry_ms integer) LANGUAGE c AS 'MODULE_PATHNAME', 'session_wait_many_wrapper';
COMMENT ON FUNCTION eskit_lease.session_wait_many(uuid[], bigint[], interval) IS
'session_wait for 1 to 1000 sessions, each with its revision, in one call: a heartbeat of each, and a row for each, in the order given. Answers at the first news of any, at once if one has ended, and within a third of the shortest TTL; it counts as one waiting call. Reasons are those of session_wait, and alive for a session without news when another had some. Raises 42501 for another role''s session, 22004, 22023.';
CREATE FUNCTION eskit_lease.session_watch(session uuid, outbox regclass) RETURNS eskit_lease.session_state LANGUAGE c AS 'MODULE_PATHNAME', 'session_watch_wrapper';
COMMENT ON FUNCTION eskit_lease.session_watch(uuid, regclass) IS
'Lets session_wait answer when news of a table can be read: rows numbered by position_next, below position_horizon. A heartbeat; wait on the revision that it answers. outbox: the table that writers name, which the caller may SELECT from; it takes the place of the one before, NULL ends the watch. The watch ends with the session and with the server: call again after a restart or a take-over. The first wait may answer without news. Raises 42501, 42P01, 42809 (not a table), 22004.';
COMMENT ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean) IS
'Asks for the lease of a resource (1 to 255 bytes), or for any free permit of a semaphore (slot tells which), without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence, also if in grace), refenced (new fence after a promotion); held (holder says by whom; NULL for a semaphore), busy (another transaction is changing it), awaited (others are in line), bridged (free, but only the worker grants a bridge, to the first in line), queued (refused, and has a place, also without queue), draining, sessions_full (a session without a slot gets nothing new, see session_heartbeat), uncommitted, closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held. With eskit_lease.confirm_interval it is 0 for a new grant: ask session_heartbeat after the commit. revision: from before the call looked, so that session_wait misses no grant since. Raises 42501, 22004, 22023, 42704 (not declared, where eskit_lease.declared_names is on), 42809 (a group), 53400 (too many places in queues).';
COMMENT ON FUNCTION eskit_lease.lease_renew(text, bigint) IS
'Whether the lease is still held under this fence; counts as a heartbeat of its session. holder: the consumer that has the lease. Reasons: held, refence (held, but acquire again for a fence of the new timeline), unconfirmed (held; as for session_heartbeat); released, forced (an administrator took it; told until another grant, while the view history knows), in_grace (a later holder has released it with grace, and may take it back), superseded (a greater fence was granted), expired (its session has ended), unknown. Raises 42501 for another role''s lease.';

-- The COMMENT says that counters begin anew when a database has given up its entry.
COMMENT ON FUNCTION eskit_lease.stats() IS 'Counters of this database, which only grow, from since on (in seconds since 1970: the start of the server, or when the database got its entry), and the numbers of living sessions, of resources that wait for the worker, and of waiting session_wait calls. sessions_opened and so on, grants, takeovers, hand_overs, releases, executions_begun and so on, items_added and so on, revocations, forces: what transactions have committed; a restart, or a burst of prepared transactions, loses counts of prepared ones. hand_over_ms_le_10: hand-overs within 10 ms of the release or the deadline of the holder; pass_ms_le_10: runs that hand over and clean up. Each such counter includes those with a shorter time. oldest_dirty_ms: how long the oldest of the resources has waited for the worker. slots_taken, slots_of_ended: slots of eskit_lease.max_sessions that are not free, in all databases, and those among them whose sessions have ended. confirmed_ms_ago: how long ago the last acknowledged confirmation began (see eskit_lease.confirm_interval), NULL before the first. databases_in_use: entries of eskit_lease.max_databases in use, by sessions, waiting calls, or work to do; a database that is not in use gives its entry up to one that needs it, and counts from 0 when it gets one again. databases_taken: databases that have an entry, in use or not. databases_unserved: databases with work that waits for a worker. unserved_ms: how long work has been due here while PostgreSQL has no process for the worker (see max_worker_processes) and no waiting session_wait call does the work; 0 if none is.';

-- The COMMENT says that bytes bound a claim.
COMMENT ON FUNCTION eskit_lease.item_claim(text, uuid, integer) IS
'Claims up to max_items (1 to 1000) items for the session, without ever waiting; counts as its heartbeat. A row for each, none if there is nothing; all under one fence, for item_done, item_fail and item_unclaim. The answer ends with the item that brings the payloads to 16 MiB, to bound its memory; session_wait then answers changed at once. In a queue with an order at most one item of each key, or partition. A session that gets fewer is woken when there are more, or when an item is due. The claim lasts until they are finished, or the session ends. Raises LF003 for a session that has ended, 55000 for one that drains or is no member of the queue''s group, 42704, 42501, 22023, 22004.';

-- Finds the next item of a key: from now on claims pass over items that wait.
CREATE INDEX _items_key ON eskit_lease._items (queue, partition, key, place) WHERE key IS NOT NULL;
CREATE INDEX _later_key ON eskit_lease._later (queue, partition, key, due) WHERE key IS NOT NULL;

-- The views executions and queues read few rows of many.
CREATE INDEX _executions_open ON eskit_lease._executions (state, started_at) WHERE state <> 'done';
CREATE TYPE eskit_lease._item_counts AS (items bigint, later bigint, dead bigint, counted_at timestamptz, ready_since timestamptz);
CREATE TYPE eskit_lease._held_count AS (held bigint, counted_at timestamptz);
REVOKE ALL ON TYPE eskit_lease._item_counts, eskit_lease._held_count FROM PUBLIC;
COMMENT ON TYPE eskit_lease._item_counts IS 'Internal: how many items a queue has.';
COMMENT ON TYPE eskit_lease._held_count IS 'Internal: how many leases are held.';
CREATE FUNCTION eskit_lease._count_held() RETURNS eskit_lease._held_count STRICT LANGUAGE c AS 'MODULE_PATHNAME', '_count_held_wrapper';
CREATE FUNCTION eskit_lease._count_items(queue integer, ordering text, partitions integer) RETURNS eskit_lease._item_counts STRICT LANGUAGE c AS 'MODULE_PATHNAME', '_count_items_wrapper';
COMMENT ON FUNCTION eskit_lease._count_held() IS 'Internal: how many leases living sessions hold; under the metrics.';
COMMENT ON FUNCTION eskit_lease._count_items(integer, text, integer) IS 'Internal: how many items a queue has, and since when one is ready; under the view queues.';
REVOKE ALL ON FUNCTION eskit_lease._count_held(), eskit_lease._count_items(integer, text, integer) FROM PUBLIC;
CREATE OR REPLACE VIEW eskit_lease.executions AS
SELECT x.key,
       x.shown AS state,
       x.consumer,
       CASE WHEN pg_has_role(x.session_role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN x.session END AS session,
       x.role,
       x.fence,
       x.attempts,
       x.started_at,
       x.finished_at,
       x.result,
       x.error,
       x.retry_in_doubt,
       x.resolved_by,
       x.resolved_at
FROM pg_extension AS e
CROSS JOIN (
    -- A part of its own, so that a reader's condition on the state can use the index of keys that are not done.
    SELECT r.*, CASE WHEN coalesce(t.state, 'expired') = 'expired' THEN 'in_doubt' ELSE r.state END AS shown, s.role AS session_role
    FROM eskit_lease._executions AS r
    LEFT JOIN eskit_lease._sessions AS s ON s.session = r.session
    LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
    WHERE r.state = 'running'
    UNION ALL
    SELECT r.*, r.state, s.role
    FROM eskit_lease._executions AS r
    LEFT JOIN eskit_lease._sessions AS s ON s.session = r.session
    WHERE r.state <> 'running') AS x
WHERE e.extname = 'eskit_lease';
CREATE OR REPLACE VIEW eskit_lease.queues AS
SELECT q.queue,
       q.ordering,
       q.max_attempts,
       make_interval(secs => q.backoff_ms / 1000.0) AS retry_backoff,
       q.group_name,
       coalesce(c.claims, 0) AS claims,
       n.items,
       n.later,
       n.dead,
       q.owner,
       n.ready_since,
       n.counted_at
FROM eskit_lease._queues AS q
LEFT JOIN (
    SELECT c.queue, count(*) AS claims
    FROM eskit_lease._claims AS c
    JOIN eskit_lease._sessions AS s ON s.session = c.session
    GROUP BY c.queue) AS c ON c.queue = q.number
LEFT JOIN eskit_lease._declarations AS d ON d.resource = q.group_name
-- A function counts, within bounds: a query could sort all items, or be compiled by JIT.
CROSS JOIN LATERAL eskit_lease._count_items(q.number, q.ordering, coalesce(d.slots, 1)) AS n;
COMMENT ON COLUMN eskit_lease.queues.counted_at IS 'When the counts were right: now, or for an estimate the last ANALYZE; NULL before the first.';

-- COMMENTs of views use fewer words.
COMMENT ON VIEW eskit_lease.sessions IS 'Sessions with rows; shared memory tells their states.';
COMMENT ON COLUMN eskit_lease.sessions.session IS 'The handle; NULL unless the reader may use it or is an administrator.';
COMMENT ON COLUMN eskit_lease.sessions.consumer IS 'The name that the process chose.';
COMMENT ON COLUMN eskit_lease.sessions.state IS 'alive, draining, closing (its end is committing), expired (not swept yet), or unknown (on a standby).';
COMMENT ON COLUMN eskit_lease.sessions.ttl_ms IS 'Time to live after a heartbeat, in milliseconds.';
COMMENT ON COLUMN eskit_lease.sessions.trust_ms IS 'Milliseconds left without another heartbeat, as far as this server vouches.';
COMMENT ON COLUMN eskit_lease.sessions.expires_at IS 'The deadline as a time, for people; NULL if expired.';
COMMENT ON COLUMN eskit_lease.sessions.revision IS 'Grows with each lease granted to it or taken from it; NULL after a restart until its first call.';
COMMENT ON COLUMN eskit_lease.sessions.attached_pid IS 'Process id of the connection that it is attached to, if any.';
COMMENT ON COLUMN eskit_lease.sessions.private IS 'Whether lock_acquire or a release with grace made it; it ends with its lease.';
COMMENT ON COLUMN eskit_lease.sessions.leases IS 'Leases that it holds.';
COMMENT ON COLUMN eskit_lease.sessions.waiting_for IS 'Its places in line.';
COMMENT ON VIEW eskit_lease.leases IS 'Leases with holder, fence and time left; released ones for eskit_lease.row_retention.';
COMMENT ON COLUMN eskit_lease.leases.slot IS 'Permit of a semaphore or partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.leases.state IS 'held, free (released), or expired (its session has ended; free for the next acquire).';
COMMENT ON COLUMN eskit_lease.leases.fence IS 'The fencing token; the last one if free.';
COMMENT ON COLUMN eskit_lease.leases.released_at IS 'When it was released, if so.';
COMMENT ON COLUMN eskit_lease.leases.trust_ms IS 'Milliseconds left to the holder''s session without another heartbeat, as far as this server vouches.';
COMMENT ON COLUMN eskit_lease.leases.expires_at IS 'The deadline as a time, for people.';
COMMENT ON COLUMN eskit_lease.leases.waiters IS 'Places in line.';
COMMENT ON VIEW eskit_lease.waiters IS 'Waiters, in the order of their turns.';
COMMENT ON COLUMN eskit_lease.waiters.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.waiters.position IS 'Place in line, from 1; places whose state is not alive are skipped.';
COMMENT ON COLUMN eskit_lease.waiters.consumer IS 'The waiter.';
COMMENT ON COLUMN eskit_lease.waiters.state IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.queued_at IS 'Start of the wait.';
COMMENT ON COLUMN eskit_lease.waiters.waiting_for IS 'Length of the wait.';
COMMENT ON COLUMN eskit_lease.waiters.holder IS 'The present holder; NULL for a semaphore, which several hold, and for a bridge.';
COMMENT ON VIEW eskit_lease.semaphores IS 'Semaphores; the view leases has the holders of their permits.';
COMMENT ON COLUMN eskit_lease.semaphores.permits IS 'How many sessions may hold it at once.';
COMMENT ON COLUMN eskit_lease.semaphores.held IS 'How many hold it; may exceed permits after a resize to fewer.';
COMMENT ON COLUMN eskit_lease.semaphores.waiters IS 'Places in line.';
COMMENT ON VIEW eskit_lease.bridges IS 'Bridges to advisory locks and to rows; the views leases and waiters have their holders and waiters.';
COMMENT ON COLUMN eskit_lease.bridges.lock_key IS 'The key for pg_advisory_lock; NULL for a row.';
COMMENT ON COLUMN eskit_lease.bridges.key IS 'The row''s primary key.';
COMMENT ON COLUMN eskit_lease.bridges.owner_column IS 'The column that names the owner.';
COMMENT ON COLUMN eskit_lease.bridges.until_column IS 'The column with the end of the owner''s time.';
COMMENT ON COLUMN eskit_lease.bridges.held IS 'Whether the worker has the lock, without which checks fail; or the row, which each check reads itself.';
COMMENT ON COLUMN eskit_lease.bridges.blocked_by IS 'Processes with the exclusive lock, then those that wait for it; 0 for a prepared transaction. NULL for a row, which names its owner.';
COMMENT ON COLUMN eskit_lease.bridges.trouble IS 'Why the worker could not take the row at its last try, so no session gets the lease now; NULL if all is well, even while an old worker owns the row.';
COMMENT ON COLUMN eskit_lease.groups.group_name IS 'The name, also a resource.';
COMMENT ON COLUMN eskit_lease.groups.partitions IS 'Number of partitions, from 0.';
COMMENT ON COLUMN eskit_lease.groups.assignor IS 'sticky or range; see partition_assign().';
COMMENT ON COLUMN eskit_lease.groups.rebalance_timeout IS 'How long an owner may take to release a partition that moves.';
COMMENT ON COLUMN eskit_lease.groups.settle_delay IS 'How long newcomers are gathered for one rebalance.';
COMMENT ON COLUMN eskit_lease.groups.generation IS 'Grows with each change of the assignment.';
COMMENT ON COLUMN eskit_lease.groups.members IS 'Living members.';
COMMENT ON COLUMN eskit_lease.groups.resize_to IS 'Number of partitions after all owners have released theirs; NULL unless it is being resized.';
COMMENT ON VIEW eskit_lease.group_members IS 'Members of groups.';
COMMENT ON COLUMN eskit_lease.group_members.state IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_members.joined_at IS 'When it joined; a successor by take-over has its predecessor''s time.';
COMMENT ON COLUMN eskit_lease.group_members.partitions IS 'Partitions that it owns.';
COMMENT ON COLUMN eskit_lease.group_members.targets IS 'Partitions assigned to it.';
COMMENT ON VIEW eskit_lease.group_partitions IS 'Partitions, with present and next owners.';
COMMENT ON COLUMN eskit_lease.group_partitions.state IS 'free, owned, revoking (the owner must release it), or expired (its owner has ended; about to move).';
COMMENT ON COLUMN eskit_lease.group_partitions.owner IS 'The consumer that owns it.';
COMMENT ON COLUMN eskit_lease.group_partitions.fence IS 'The fencing token; the last one if free.';
COMMENT ON COLUMN eskit_lease.group_partitions.target IS 'The consumer that it is assigned to.';
COMMENT ON COLUMN eskit_lease.group_partitions.revoke_in IS 'Time left to release it; NULL if there is no limit. A draining owner has one only while the group is resized.';
COMMENT ON VIEW eskit_lease.group_lag IS 'Progress and lag of each group in each partition.';
COMMENT ON COLUMN eskit_lease.group_lag.position IS 'The cursor: all positions up to it are done.';
COMMENT ON COLUMN eskit_lease.group_lag.head IS 'The newest position reported by cursor_report_head(); NULL without a report.';
COMMENT ON COLUMN eskit_lease.group_lag.lag IS 'Positions from cursor to head; NULL without a report.';
COMMENT ON COLUMN eskit_lease.group_lag.acked_ahead IS 'Acknowledged positions beyond the cursor.';
COMMENT ON COLUMN eskit_lease.group_lag.fence IS 'The fence of the cursor''s last commit.';
COMMENT ON COLUMN eskit_lease.group_lag.committed_at IS 'The time of that commit.';
COMMENT ON VIEW eskit_lease.executions IS 'Run-once keys; done and resolved ones for eskit_lease.execution_retention.';
COMMENT ON COLUMN eskit_lease.executions.state IS 'running, done, failed, in_doubt (its session ended first), or retry (free for another attempt).';
COMMENT ON COLUMN eskit_lease.executions.consumer IS 'The consumer of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.role IS 'The role of its session, by its name then.';
COMMENT ON COLUMN eskit_lease.executions.attempts IS 'Attempts so far.';
COMMENT ON COLUMN eskit_lease.executions.started_at IS 'Start of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.result IS 'The result, if done.';
COMMENT ON COLUMN eskit_lease.executions.retry_in_doubt IS 'Whether another attempt may begin without a decision when it is in doubt.';
COMMENT ON COLUMN eskit_lease.executions.resolved_by IS 'The role that resolved it, if any.';
COMMENT ON COLUMN eskit_lease.executions.resolved_at IS 'When it was resolved.';
COMMENT ON COLUMN eskit_lease.fenced_tables.resource IS 'The resource that writers must hold; NULL if another trigger has replaced the one that checks it.';
COMMENT ON COLUMN eskit_lease.fenced_tables.partition_column IS 'The column with each row''s partition, if the table is fenced by a column.';
COMMENT ON COLUMN eskit_lease.fenced_tables.checks_each IS 'Whether it is checked after each statement or each row.';
COMMENT ON COLUMN eskit_lease.fenced_tables.complete IS 'False if table_fence() must be called again: a trigger was disabled, dropped or replaced, the table was attached to another, or has a partition without a fence for TRUNCATE. False too in inheritance: no fence is complete there.';
COMMENT ON VIEW eskit_lease.blockers IS 'Open transactions that keep leases from changing hands, or keep a group, a semaphore, a bridge or a session as it is. A row names the connection or the prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.doing IS 'fenced, fenced by the session, releasing, granting to the session, ending the session; changing: the transaction has the lease''s row to acquire it, release it (also with grace), or take it back; changing the group, the semaphore, the bridge, or the session (to drain or to end it).';
COMMENT ON COLUMN eskit_lease.blockers.resource IS 'The resource, if any.';
COMMENT ON COLUMN eskit_lease.blockers.granted IS 'False while the transaction itself waits.';
COMMENT ON VIEW eskit_lease.queues IS 'Queues of work items.';
COMMENT ON COLUMN eskit_lease.queues.queue IS 'The name, in the name space of queues.';
COMMENT ON COLUMN eskit_lease.queues.ordering IS 'none: about in the order of adding; key: the items of a key one at a time, in order; fifo: the same for all items of a partition.';
COMMENT ON COLUMN eskit_lease.queues.max_attempts IS 'Attempts until an item is dead.';
COMMENT ON COLUMN eskit_lease.queues.retry_backoff IS 'Pause before the first retry of an item; doubles with each further one, up to 1 hour.';
COMMENT ON COLUMN eskit_lease.queues.group_name IS 'The group whose partitions decide which session claims what; NULL without one.';
COMMENT ON COLUMN eskit_lease.queues.claims IS 'item_claim calls with unfinished items.';
COMMENT ON COLUMN eskit_lease.queues.items IS 'Ready and claimed items; above 10000 an estimate.';
COMMENT ON COLUMN eskit_lease.queues.later IS 'Items that are not due yet; above 10000 an estimate.';
COMMENT ON COLUMN eskit_lease.queues.dead IS 'Dead items; above 10000 an estimate.';
COMMENT ON COLUMN eskit_lease.queues.ready_since IS 'When its first ready item, of any partition, was added; NULL without one.';
COMMENT ON VIEW eskit_lease.items IS 'Unfinished work items. Read it with a condition on queue: there may be millions.';
COMMENT ON COLUMN eskit_lease.items.id IS 'The item''s permanent id.';
COMMENT ON COLUMN eskit_lease.items.state IS 'ready (with an ordering, perhaps behind another), claimed, expired (its claimer has ended; about to be ready), or later (not claimed before its run_at).';
COMMENT ON COLUMN eskit_lease.items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.items.attempt IS 'How often it was claimed.';
COMMENT ON COLUMN eskit_lease.items.error IS 'Its last error.';
COMMENT ON COLUMN eskit_lease.items.run_at IS 'When an item of state later was or will be due.';
COMMENT ON COLUMN eskit_lease.items.consumer IS 'The claimer.';
COMMENT ON VIEW eskit_lease.dead_items IS 'Dead letters: items that failed as often as their queue allows, for eskit_lease.dead_item_retention. item_requeue() retries them.';
COMMENT ON COLUMN eskit_lease.dead_items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.dead_items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.dead_items.error IS 'Its last error; session ended means that its claimer ended first.';
COMMENT ON VIEW eskit_lease.position_blockers IS 'Open transactions that have written, in any database, prepared ones included, except the reader''s own: position_horizon() lags behind the oldest.';
COMMENT ON COLUMN eskit_lease.position_blockers.database IS 'The database that it writes.';
COMMENT ON COLUMN eskit_lease.position_blockers.role IS 'Its role.';
COMMENT ON COLUMN eskit_lease.position_blockers.behind IS 'Transaction ids given since; the oldest transaction holds the horizon back.';
COMMENT ON VIEW eskit_lease.history IS 'Lost leases, kept for eskit_lease.history_retention; with eskit_lease.history_grants also ordinary grants and releases. Filter by the column at.';
COMMENT ON COLUMN eskit_lease.history.event IS 'expired (its session ended without closing, as when a lock is not released), taken_over (by a new session of the same consumer), revoked (a partition that was not released in time), forced (by an administrator); with history_grants also granted and released.';
COMMENT ON COLUMN eskit_lease.history.slot IS 'Permit of a semaphore or partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.history.fence IS 'The fence lost or granted.';
COMMENT ON COLUMN eskit_lease.history.consumer IS 'The consumer that lost it or was granted it; NULL if a session released it by closing.';
COMMENT ON COLUMN eskit_lease.history.next_consumer IS 'The consumer that got it in the same step; NULL if none.';
COMMENT ON COLUMN eskit_lease.history.next_fence IS 'The fence of that consumer.';
COMMENT ON COLUMN eskit_lease.history.forced_by IS 'The role that took it by force, by its name then.';
COMMENT ON COLUMN eskit_lease.history.why IS 'The reason that this role gave.';
COMMENT ON VIEW eskit_lease.flapping IS 'Resources that changed hands within the last hour, by the history.';
COMMENT ON COLUMN eskit_lease.flapping.changes IS 'Losses (with history_grants also grants) of the slot with most of them. The following columns count all slots.';
COMMENT ON COLUMN eskit_lease.flapping.expired IS 'Losses by a session that ended without closing.';
COMMENT ON COLUMN eskit_lease.flapping.taken_over IS 'Losses to a new session of the same consumer.';
COMMENT ON COLUMN eskit_lease.flapping.revoked IS 'Partitions taken from owners that did not release them in time.';
COMMENT ON COLUMN eskit_lease.flapping.forced IS 'Losses to an administrator.';
COMMENT ON COLUMN eskit_lease.flapping.granted IS 'Grants, with history_grants.';
COMMENT ON COLUMN eskit_lease.flapping.slots IS 'Slots concerned.';
COMMENT ON COLUMN eskit_lease.flapping.consumers IS 'Consumers concerned.';
COMMENT ON COLUMN eskit_lease.flapping.last_at IS 'Time of the last one.';
COMMENT ON VIEW eskit_lease.top IS 'The busiest resources, for \watch: up to 40, first the longest waited for, then the most often lost within the last hour, then the last granted.';
COMMENT ON COLUMN eskit_lease.top.held IS 'Slots that living sessions hold.';
COMMENT ON COLUMN eskit_lease.top.slots IS 'All of its slots.';
COMMENT ON COLUMN eskit_lease.top.consumer IS 'The longest holder.';
COMMENT ON COLUMN eskit_lease.top.held_for IS 'Time since its grant.';
COMMENT ON COLUMN eskit_lease.top.trust_ms IS 'Milliseconds left to the holders'' sessions without another heartbeat: the least of them.';
COMMENT ON COLUMN eskit_lease.top.waiters IS 'Places in line.';
COMMENT ON COLUMN eskit_lease.top.waiting_for IS 'How long the first waiter has waited.';
COMMENT ON COLUMN eskit_lease.top.open_for IS 'Age of the transaction that keeps it from changing hands; see the view blockers.';
COMMENT ON COLUMN eskit_lease.top.losses IS 'Losses within the last hour of the slot with most losses; see the view flapping.';
COMMENT ON COLUMN eskit_lease.top.lag IS 'Positions that a group has to do, if heads are reported.';
COMMENT ON COLUMN eskit_lease.leases.session IS 'The holder''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.session IS 'The waiter''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_members.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_partitions.session IS 'The owner''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.executions.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.items.session IS 'The claimer''s session; NULL as in the view sessions.';

-- One grammar, noun_verb. Functions are renamed, so that users' defaults, views and triggers, which know a function by
-- its oid, stay as they are. The former names stay, as functions that warn.
ALTER FUNCTION eskit_lease.fence_table(regclass, text, text) RENAME TO table_fence;
ALTER FUNCTION eskit_lease.cursor_head(text, integer, bigint) RENAME TO cursor_report_head;
ALTER FUNCTION eskit_lease.next_position() RENAME TO position_next;
CREATE FUNCTION eskit_lease.fence_table(target regclass, resource text, partition_column text DEFAULT NULL) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'former_fence_table_wrapper';
CREATE FUNCTION eskit_lease.cursor_head(group_name text, partition integer, "position" bigint) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'former_cursor_head_wrapper';
CREATE FUNCTION eskit_lease.next_position() RETURNS bigint STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'former_next_position_wrapper';
CREATE OR REPLACE FUNCTION eskit_lease.unfence_table(target regclass) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'former_unfence_table_wrapper';
COMMENT ON FUNCTION eskit_lease.next_position() IS 'Deprecated: the former name of position_next().';
COMMENT ON FUNCTION eskit_lease.cursor_head(text, integer, bigint) IS 'Deprecated: the former name of cursor_report_head().';
COMMENT ON FUNCTION eskit_lease.fence_table(regclass, text, text) IS 'Deprecated: the former name of table_fence().';
COMMENT ON FUNCTION eskit_lease.unfence_table(regclass) IS 'Deprecated: the former name of table_unfence(.., missing_ok => true).';
COMMENT ON FUNCTION eskit_lease.position_next() IS
'A position for a row, as the default of a column: position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(). Greater than all positions of transactions with lower ids, and than earlier ones of the same transaction. The transaction that draws it must be the one that writes it. At most 1048576 in one transaction (54000).';
COMMENT ON FUNCTION eskit_lease.require_fence() IS
'The trigger function of fenced tables; made by table_fence().';

-- Functions that drop raise 42704 if nothing has the name, or return false with missing_ok.
DROP FUNCTION eskit_lease.semaphore_drop(text);
DROP FUNCTION eskit_lease.group_drop(text);
DROP FUNCTION eskit_lease.queue_drop(text, boolean);
DROP FUNCTION eskit_lease.bridge_drop(text);
CREATE FUNCTION eskit_lease.semaphore_drop(name text, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'semaphore_drop_if_wrapper';
CREATE FUNCTION eskit_lease.group_drop(group_name text, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'group_drop_if_wrapper';
CREATE FUNCTION eskit_lease.queue_drop(queue text, items boolean DEFAULT false, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'queue_drop_if_wrapper';
CREATE FUNCTION eskit_lease.bridge_drop(resource text, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'bridge_drop_if_wrapper';
CREATE FUNCTION eskit_lease.table_unfence(target regclass, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'table_unfence_wrapper';
COMMENT ON FUNCTION eskit_lease.semaphore_drop(text, boolean) IS
'Drops a semaphore that is neither held nor waited for. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.group_drop(text, boolean) IS
'Drops a group without living members, and its cursors. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.queue_drop(text, boolean, boolean) IS
'Drops a queue; with items, also its items, dead ones too. Without it raises 55006 if there are items. Raises 55P03 while an open transaction is changing one of them, 42704 where there is no such queue (with missing_ok it answers false), 42501.';
COMMENT ON FUNCTION eskit_lease.bridge_drop(text, boolean) IS
'Drops a bridge that is neither held nor waited for; its name is then a plain one. The bridged row is free within 30 seconds. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it). For administrators.';
COMMENT ON FUNCTION eskit_lease.table_unfence(regclass, boolean) IS
'Removes the fence: roles write the table again by their privileges alone. For the table''s owner. Raises 42704 for a table that is not fenced; with missing_ok it answers false. Raises 42501, 22004.';

-- Answers get more columns, at the end. So the functions stay, with their grants and all that depends on them.
ALTER TYPE eskit_lease.lease_answer ADD ATTRIBUTE revision bigint;
ALTER TYPE eskit_lease.execution_answer ADD ATTRIBUTE revision bigint;
ALTER TYPE eskit_lease.lease_state ADD ATTRIBUTE holder text;
COMMENT ON COLUMN eskit_lease.lease_answer.revision IS 'The revision of the session from before the call looked: a session_wait() on it misses no change since. NULL for lock_acquire(), and for a session that does not live.';
COMMENT ON COLUMN eskit_lease.execution_answer.revision IS 'The revision of the session from before the call looked: a session_wait() on it misses no change since.';
COMMENT ON COLUMN eskit_lease.lease_state.holder IS 'The consumer that has the lease, under this fence or a later one; NULL if there is none or it is not known.';
-- That is the surface.

-- COMMENTs of functions name who does what.
COMMENT ON FUNCTION eskit_lease.partition_of_uuid(uuid, integer) IS
'Partition of a uuid, 0 to partitions - 1: all uuids are cut into that many equal ranges, so a partition is one range of an index. For random uuids (v4); uuids in the order of time (v7) all lie in one partition. Raises 22023 unless partitions > 0.';
COMMENT ON FUNCTION eskit_lease.session_open(text, interval, boolean, interval, boolean) IS
'Opens a session for a consumer (1 to 255 bytes). ttl: time to live between heartbeats, min_ttl to max_ttl, default eskit_lease.default_ttl. attach: the session also ends, after attach_grace, when this connection ends. takeover: ends the living sessions of this consumer and role, and inherits their leases, places in queues and partitions under new fences; what an open transaction of theirs has fenced follows at its end; their run-once attempts are in doubt, and items that they have claimed are free. Warns (01000) if it takes nothing over and a living session of this consumer is another role''s. Returns the session, a handle to keep private; trust_ms, how long from the start of the call it may be believed alive; and its revision. Raises 22004, 22023, 53400 (too many sessions), 55000 (not preloaded), 25006 (read-only or standby).';
COMMENT ON FUNCTION eskit_lease.session_drain(uuid) IS
'Gives the session no new leases; its heartbeats and its work go on. False if it is not alive.';
COMMENT ON FUNCTION eskit_lease.session_sweep(integer) IS
'Does one bounded run of the background worker''s work: hands over, and removes the rows of sessions that have ended, up to max_leases leases (1 to 100000). Returns sessions ended, leases handed over, and whether there is more to do. It also finds items that were copied in, not added, and raises fences and ids above all that were given before, even after a restore of data alone. For administrators.';
COMMENT ON FUNCTION eskit_lease.lease_release(text, bigint, interval) IS
'Releases the lease and hands it to the first in line, with this transaction. Waits for the holder''s own fenced transactions, under lock_timeout. grace (0 to eskit_lease.max_ttl, default 0): does not wait, and lets the lease live on without its session for that long, under the same fence; the holder may finish, acquire it back, or release it for good. After that it lapses. False if it is not held under this fence. Raises 42809 for grace of a group''s partition.';
COMMENT ON FUNCTION eskit_lease.lease_force_release(text, bigint, text) IS
'Takes the lease from its holder, whose fence is no longer valid, and hands it to the first in line. Waits for fenced transactions of the holder. why: for the server log. For administrators.';
COMMENT ON FUNCTION eskit_lease.lock_acquire(text, text, interval, uuid) IS
'Asks for a lease without a session of one''s own, as ShedLock does: a private session of the owner lives for ttl and ends with the lease. Renew and release it by name and fence. The same role, owner and request get the same fence again, renewed for the first ttl. Reasons as for lease_acquire.';
COMMENT ON FUNCTION eskit_lease.table_fence(regclass, text, text) IS
'Lets only those transactions write the table that have passed fence_check, cursor_commit or cursor_ack for the resource (of a semaphore or group: for any slot). partition_column: an integer column; the resource is a group, and each row needs the check of its own partition; TRUNCATE is refused. For the table''s owner. True if anything changed. Raises 42501, 42710 (fenced by another resource), 42809 (no table, or one in inheritance), 42703 and 42804 (column), 42704, 22023, 22004. Other writes raise LF002.';
COMMENT ON FUNCTION eskit_lease.semaphore_create(text, integer) IS
'Makes a semaphore: up to permits (1 to 32768) sessions hold the name at once, one permit each, by lease_acquire. Raises 42710 for a name that is declared, held or waited for, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.group_create(text, integer, text, interval, interval) IS
'Makes a consumer group with partitions 0 to partitions - 1 (1 to 32768 of them). assignor: sticky (default; balanced with the fewest moves) or range (neighbours together). rebalance_timeout: how long an owner has to release a partition that moves to another member. settle_delay: how long the group gathers newcomers for one rebalance. Intervals are 0 to 1 day. Raises 42710 for a name that is declared, held or waited for, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.cursor_ack(text, integer, bigint, bigint) IS
'Acknowledges one position, in any order, with this transaction and under the fence. Returns the cursor: the end of the contiguous part. Raises as cursor_commit does, and 53400 beyond 1000 separate ranges.';
COMMENT ON FUNCTION eskit_lease.cursor_position(text, integer) IS
'The cursor of a partition: all positions up to it are done; 0 if none is.';
COMMENT ON FUNCTION eskit_lease.cursor_report_head(text, integer, bigint) IS
'Reports the newest position of a partition, for the view group_lag; for producers and monitors. Never waits: false if a newer one is known, or another transaction is committing a report.';
COMMENT ON FUNCTION eskit_lease.execution_finish(text, bigint, jsonb) IS
'Records the attempt under this fence as done, with this transaction, with a result of up to 1 MiB as text. False if it was finished already under this fence. Raises LF001 when another attempt has begun, this one has failed or was resolved, or its session has ended; 55P03 while another transaction is changing the key; 54000, 42501.';
COMMENT ON FUNCTION eskit_lease.execution_fail(text, bigint, text, boolean) IS
'Records the attempt under this fence as failed, with this transaction. error: the reason; its first 8 KiB are kept. retry: frees the key for another attempt; otherwise it stays failed until execution_resolve. False if it had failed already under this fence. Raises as execution_finish does.';
COMMENT ON FUNCTION eskit_lease.execution_resolve(text, text, jsonb) IS
'Decides an attempt that is in doubt or failed. outcome: done (with a result, if there is one), failed, or retry, which frees the key for another attempt. False if the attempt is neither in doubt nor failed. Writes to the server log. Raises 42704, 55P03, 22023, 54000. For administrators.';
COMMENT ON FUNCTION eskit_lease.position_horizon() IS
'All positions below it are settled for the calling statement: committed and visible, or never used. So WHERE position > last AND position < eskit_lease.position_horizon() ORDER BY position never skips a row. It lags behind the oldest open transaction that writes, in any database; see the view position_blockers. Works on a standby, and without preload. It may fall after a crash or position_raise(): keep the last position read, never the horizon.';
COMMENT ON FUNCTION eskit_lease._require_library(text) IS
'Internal: the first step of an update; refuses it if the running library is older than this version.';
COMMENT ON FUNCTION eskit_lease.queue_create(text, integer, interval, text, text) IS
'Makes a queue of work items (1 to 255 bytes; queues have a name space of their own). max_attempts (1 to 1000000): how often an item is claimed before it is dead. retry_backoff (0 to 1 day): the pause before the first retry; it doubles with each further one, up to 1 hour. ordering: none, about in the order of adding; key, the items of a key one at a time and in order, each when the one before is done or dead; fifo, the same for all items of a partition. group_name: a session then claims only items of the partitions that it owns there. Raises 42710, 42704 (group), 42809, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.item_add(text, jsonb, text, timestamptz) IS
'Adds an item to a queue, with this transaction, and returns its id. payload: up to 1 MiB, and 16 MiB as text. key (1 to 255 bytes): decides the partition in a queue that is bound to a group; where the ordering is key, items of a key are given one at a time. run_at: the earliest time of a claim. Raises 42704, 22004, 22023, 54000 (payload too large), 55P03 (the queue is being dropped, or its group resized).';
COMMENT ON FUNCTION eskit_lease.item_done(bigint[], bigint) IS
'Records items as done, with this transaction: call it in the one that writes the result. All or nothing: raises LF001 if any of them is no longer claimed under this fence, or the session of the claim has ended; 55P03 if another transaction is changing one of them. An id given twice counts once. Returns how many.';
COMMENT ON FUNCTION eskit_lease.item_unclaim(bigint[], bigint) IS
'Gives items back to their places in the queue; the attempt does not count. Raises as item_done does. Returns how many.';
COMMENT ON FUNCTION eskit_lease.item_requeue(bigint) IS
'Makes a dead item ready again, as the newest of its queue, and gives it all its attempts again. For the owner of the queue. Raises 42704, 42501, 55P03.';
COMMENT ON FUNCTION eskit_lease.item_fail(bigint, bigint, text, interval) IS
'Records that an item has failed, with an error (8192 bytes of it are kept). True: it will be tried again after retry_in, NULL for the backoff of its queue. False: that was its last attempt, and it is dead now. For one item, as each has its own error. Raises as item_done does.';
COMMENT ON FUNCTION eskit_lease.lease_release_many(text[], uuid) IS
'Releases what the session holds of up to 100000 resources: a row for each distinct resource. It goes by the session, not by fences: a consumer gives up all of them at the end of its work. lease_release gives up one grant, named by its fence.';
COMMENT ON FUNCTION eskit_lease.fence_check(text, bigint) IS
'Asserts that the lease is held under this fence, to the end of the transaction: no other session gets it before. Call it in each transaction that writes, as a statement of its own before the data to write is read: the statement that calls a function may have an older snapshot than the check inside. A SELECT of it alone, outside a transaction block, protects nothing: a WARNING (25P01), once in a connection. Raises LF001 when the fence is no longer valid, 55P03 while the lease is changing hands, when a partition''s time to be released is over, or when the lock or row of a bridge cannot be had, 40001 when the lease was granted after this transaction''s snapshot, 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.semaphore_resize(text, integer) IS
'Changes the number of permits. A smaller number takes effect as permits are released. Raises 42704, 42809 (a group), 42501 unless the caller made it, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.bridge_create(text, bigint) IS
'Bridges a name to an advisory lock: workers that hold pg_advisory_lock(lock_key) and workers that hold the lease then keep each other out. The worker gives the lease to the first in line while it has the lock in share mode; fence_check shares the lock to the end of the transaction, or raises 55P03. If the worker loses the lock and gets it back, the holder gets a new fence. Several names may share one lock. Raises 42710 for a name that is declared, held or waited for, 53400 (more than 250 bridges), 22023, 22004. For administrators.';
COMMENT ON FUNCTION eskit_lease.bridge_create_row(text, regclass, text, text, text) IS
'Bridges a name to a row by which old workers lease: workers that own the row and workers that hold the lease then keep each other out. An old worker owns the row with primary key key while owner_column (text or varchar) names it and until_column (timestamptz, or timestamp in UTC, with a warning) is in the future. The worker gives the lease to the first in line while it owns the row as eskit_lease:resource:number; fence_check locks the row in share mode to the end of the transaction, or raises 55P03. If another worker has owned the row meanwhile, the holder gets a new fence. For administrators who own the table, which must be plain. Raises 42501 (not the owner), 42809 (not plain), 42703, 42P01, P0002 (no such row), 22P02 and 22003 (no such key), 55000 (published without a replica identity), 42710 for a name that is declared, held or waited for and for a row that is bridged, 55P03 (the table is locked), 53400 (more than 250 bridges), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.group_alter(text, text, interval, interval) IS
'Changes settings of a group; NULL, the default, keeps one. Raises 42704, 42809, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.group_resize(text, integer, boolean) IS
'Changes the number of partitions, and with it the partition of each key. Raises 55006 while any partition is owned; with drain, it first asks all owners to release theirs within the rebalance_timeout. Every cursor then begins at the lowest position of all: nothing is skipped, some events may be seen again. The present number calls off a resize that is still draining. True once it is done, false while it drains. Raises 42704, 42809, 42501, 22023, 55P03 (another transaction is changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_join(text, uuid) IS
'Makes the session a member of the group, once; counts as its heartbeat. Partitions arrive as other members release them: see group_assignment. Returns the generation. Raises LF003 for a session that has ended, 55000 for one that drains, 42704, 42809, 42501, 55P03 (another transaction is changing or dropping the group).';
COMMENT ON FUNCTION eskit_lease.group_leave(text, uuid) IS
'Ends the membership, and releases the session''s partitions to their targets. Waits for its own fenced transactions, under lock_timeout. False if it was no member. Raises 42704, 42809, 42501, 55P03 (lock_timeout ran out, or another transaction is changing the group).';
COMMENT ON FUNCTION eskit_lease.group_assignment(text, uuid) IS
'The partitions that the session owns; counts as its heartbeat. Ask whenever the revision of the session has changed. state: owned, or revoking: finish, commit the cursor and release it with group_release, within revoke_in (NULL for a session that drains: in its own time). Raises LF003 for a session that has ended, 55000 for one that is no member.';
COMMENT ON FUNCTION eskit_lease.group_release(text, integer, bigint) IS
'Releases a partition to its target; the answer to a revocation. Waits for the owner''s own fenced transactions, under lock_timeout. False if it is not owned under this fence.';
COMMENT ON FUNCTION eskit_lease.execution_begin(text, uuid, boolean) IS
'Begins an attempt of a run-once key; counts as a heartbeat of the session. first: true for exactly one caller per attempt, who gets the fence for execution_finish and execution_fail. state: running, done (with its result), failed, or in_doubt: the session that ran it has ended. Never waits: running, without started_at, while another transaction is changing the key. The session that runs it gets its fence again. retry_in_doubt: once this attempt is in doubt, the next call begins another. revision: as of lease_acquire. Raises 40001 if, under REPEATABLE READ or SERIALIZABLE, the last attempt ended after this transaction''s snapshot, LF003 for a session that has ended, 55000 for one that drains, 42501.';
COMMENT ON FUNCTION eskit_lease.position_raise(bigint) IS
'Raises all future positions above this one (0 to 4611686018427387903), at once, even if this transaction rolls back. For rows that came with greater positions: copied from elsewhere, or kept while the extension was dropped and made again. Waits for no transaction; the horizon stays below the positions of transactions that are open now until they end. False if all future positions are above it already. Writes to the server log. Raises 22023, 22004, 25006, 53400, 55000. For administrators.';
COMMENT ON FUNCTION eskit_lease.grant_consumer(regrole) IS 'Lets a role open sessions, use leases, locks and fences, make and use semaphores and groups, move cursors, draw and read positions, use run-once keys, make queues and work off their items, and fence its own tables. For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.grant_monitor(regrole) IS 'Lets a role read the views and stats(), report heads with cursor_report_head(), and call position_horizon(). For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.queue_alter(text, integer, interval) IS
'Changes settings of a queue; NULL, the default, keeps one. Raises 42704, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';

-- Who opened a session. The columns get their defaults only afterwards: otherwise existing rows would name the
-- connection that runs this update.
ALTER TABLE eskit_lease._sessions
    ADD COLUMN address inet,
    ADD COLUMN application_name text COLLATE "C",
    ADD COLUMN login text COLLATE "C";
ALTER TABLE eskit_lease._sessions
    ALTER COLUMN address SET DEFAULT pg_catalog.inet_client_addr(),
    ALTER COLUMN application_name SET DEFAULT pg_catalog.current_setting('application_name'),
    ALTER COLUMN login SET DEFAULT session_user;
CREATE OR REPLACE VIEW eskit_lease.sessions AS
SELECT CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN s.session END AS session,
       s.consumer,
       pg_get_userbyid(s.role) AS role,
       CASE WHEN s.draining AND t.state = 'alive' THEN 'draining' ELSE t.state END AS state,
       s.ttl_ms,
       t.trust_ms,
       t.expires_at,
       t.revision,
       t.attached_pid,
       s.private,
       s.opened_at,
       (SELECT count(*) FROM eskit_lease._leases AS l WHERE l.session = s.session) AS leases,
       (SELECT count(DISTINCT w.resource) FROM eskit_lease._waiters AS w WHERE w.session = s.session) AS waiting_for,
       s.address,
       s.application_name,
       s.login
FROM pg_extension AS e
CROSS JOIN eskit_lease._sessions AS s
CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
WHERE e.extname = 'eskit_lease';

-- The history and the view of leases tell when the last holder's session ended.
ALTER TABLE eskit_lease._history ADD COLUMN ended_at timestamptz;
CREATE OR REPLACE VIEW eskit_lease.history AS
SELECT h.at, h.event, h.resource, h.slot, h.fence, h.consumer, h.next_consumer, h.next_fence, h.forced_by, h.why, h.ended_at
FROM pg_extension AS e
CROSS JOIN eskit_lease._history AS h
WHERE e.extname = 'eskit_lease';
-- The view reads all columns of the table, which has one more now.
CREATE OR REPLACE VIEW eskit_lease.flapping AS
SELECT h.resource,
       coalesce(max(h.nth) FILTER (WHERE h.event <> 'released'), 0) AS changes,
       count(*) FILTER (WHERE h.event = 'expired') AS expired,
       count(*) FILTER (WHERE h.event = 'taken_over') AS taken_over,
       count(*) FILTER (WHERE h.event = 'revoked') AS revoked,
       count(*) FILTER (WHERE h.event = 'forced') AS forced,
       count(*) FILTER (WHERE h.event = 'granted') AS granted,
       count(DISTINCT h.slot) AS slots,
       count(DISTINCT h.consumer) AS consumers,
       max(h.at) AS last_at
-- Changes are counted by slot: one crash of a member loses all its partitions, which is no flapping.
FROM (SELECT h.*, row_number() OVER (PARTITION BY h.resource, h.slot, CASE WHEN h.event IN ('granted', 'released') THEN h.event END) AS nth
      FROM eskit_lease._history AS h
      WHERE h.at > statement_timestamp() - interval '1 hour') AS h
GROUP BY h.resource;
COMMENT ON COLUMN eskit_lease.history.at IS 'When it was recorded: at the hand-over.';
COMMENT ON COLUMN eskit_lease.history.ended_at IS 'When its consumer''s hold ended: for expired, the session''s deadline, perhaps long before at. NULL for a grant.';
CREATE FUNCTION eskit_lease._ended_at(session uuid, boot_id bigint, ttl_ms integer) RETURNS timestamptz LANGUAGE c STRICT AS 'MODULE_PATHNAME', '_ended_at_wrapper';
COMMENT ON FUNCTION eskit_lease._ended_at(uuid, bigint, integer) IS 'Internal: when an expired session ended; under the view leases.';
CREATE OR REPLACE VIEW eskit_lease.leases AS
SELECT l.resource,
       l.slot,
       CASE WHEN l.session IS NULL THEN 'free' WHEN coalesce(t.state, 'expired') = 'expired' THEN 'expired' ELSE 'held' END AS state,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN l.session END AS session,
       pg_get_userbyid(s.role) AS role,
       l.fence,
       l.granted_at,
       l.released_at,
       coalesce(l.released_at, clock_timestamp()) - l.granted_at AS held_for,
       t.trust_ms,
       t.expires_at,
       (SELECT count(DISTINCT w.session) FROM eskit_lease._waiters AS w WHERE w.resource = l.resource) AS waiters,
       s.address,
       CASE WHEN l.session IS NULL THEN l.released_at
            WHEN t.state = 'expired' THEN eskit_lease._ended_at(s.session, s.boot_id, s.ttl_ms) END AS ended_at,
       s.application_name
FROM pg_extension AS e
CROSS JOIN eskit_lease._leases AS l
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
WHERE e.extname = 'eskit_lease';

CREATE OR REPLACE VIEW eskit_lease.waiters AS
SELECT w.resource,
       row_number() OVER (PARTITION BY w.resource ORDER BY w.place) AS position,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN w.session END AS session,
       coalesce(CASE WHEN s.draining AND t.state = 'alive' THEN 'draining' ELSE t.state END, 'expired') AS state,
       w.queued_at,
       clock_timestamp() - w.queued_at AS waiting_for,
       -- A subquery: if a reader does not select this column, no lease is read. There may be a million.
       (SELECT h.consumer
        FROM eskit_lease._leases AS l
        JOIN eskit_lease._sessions AS h ON h.session = l.session
        WHERE l.resource = w.resource AND l.slot = 0 AND NOT l.declared
        LIMIT 1) AS holder,
       s.address,
       s.application_name
FROM pg_extension AS e
CROSS JOIN (
    -- A session may have several places in a line (a take-over, a rollback); it is granted the lease once.
    SELECT p.resource, p.session, min(p.place) AS place, min(p.queued_at) AS queued_at
    FROM eskit_lease._waiters AS p
    GROUP BY p.resource, p.session) AS w
LEFT JOIN eskit_lease._sessions AS s ON s.session = w.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
WHERE e.extname = 'eskit_lease';

-- These count a session once in each line.
CREATE OR REPLACE VIEW eskit_lease.semaphores AS
SELECT d.resource AS name,
       d.slots AS permits,
       h.held,
       (SELECT count(DISTINCT w.session) FROM eskit_lease._waiters AS w WHERE w.resource = d.resource) AS waiters,
       d.owner
FROM eskit_lease._declarations AS d
CROSS JOIN LATERAL (
    SELECT count(*) AS held
    FROM eskit_lease._leases AS l
    JOIN eskit_lease._sessions AS s ON s.session = l.session
    CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
    WHERE l.resource = d.resource AND t.state <> 'expired') AS h
WHERE d.kind = 'semaphore';
CREATE OR REPLACE VIEW eskit_lease.top AS
SELECT c.resource,
       coalesce(d.kind, 'lease') AS kind,
       h.held,
       coalesce(d.slots, 1) AS slots,
       h.consumer,
       h.held_for,
       h.trust_ms,
       c.waiters,
       clock_timestamp() - c.waiting_since AS waiting_for,
       clock_timestamp() - b.since AS open_for,
       c.losses,
       (SELECT sum(g.lag)::bigint FROM eskit_lease.group_lag AS g WHERE d.kind = 'group' AND g.group_name = c.resource) AS lag
-- The rows are chosen before their sessions are looked up: that takes time, and there may be 100,000 leases.
FROM (SELECT n.resource, sum(n.waiters)::bigint AS waiters, min(n.waiting_since) AS waiting_since, max(n.losses) AS losses, max(n.at) AS at
      FROM (SELECT w.resource, count(DISTINCT w.session) AS waiters, min(w.queued_at) AS waiting_since, 0 AS losses, max(w.queued_at) AS at
            FROM eskit_lease._waiters AS w
            GROUP BY w.resource
            UNION ALL
            SELECT h.resource, 0, NULL, count(*), max(h.at)
            FROM eskit_lease._history AS h
            WHERE h.at > statement_timestamp() - interval '1 hour' AND h.event NOT IN ('granted', 'released')
            GROUP BY h.resource, h.slot
            UNION ALL
            SELECT l.resource, 0, NULL, 0, l.granted_at
            FROM eskit_lease._leases AS l
            WHERE l.session IS NOT NULL) AS n
      GROUP BY n.resource
      ORDER BY 3, 4 DESC, 5 DESC, 1
      LIMIT 40) AS c
LEFT JOIN eskit_lease._declarations AS d ON d.resource = c.resource
LEFT JOIN (SELECT b.resource, min(b.since) AS since FROM eskit_lease.blockers AS b GROUP BY b.resource) AS b ON b.resource = c.resource
CROSS JOIN LATERAL (
    SELECT count(*) AS held,
           (array_agg(s.consumer ORDER BY l.granted_at, l.slot))[1] AS consumer,
           clock_timestamp() - min(l.granted_at) AS held_for,
           min(t.trust_ms) AS trust_ms
    FROM eskit_lease._leases AS l
    JOIN eskit_lease._sessions AS s ON s.session = l.session
    CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
    WHERE l.resource = c.resource AND t.state <> 'expired') AS h
ORDER BY c.waiting_since, c.losses DESC, c.at DESC, c.resource;

COMMENT ON COLUMN eskit_lease.sessions.address IS 'Address of the client that opened it (a pooler''s, behind one); NULL for a Unix socket.';
COMMENT ON COLUMN eskit_lease.sessions.application_name IS 'Its application_name then.';
COMMENT ON COLUMN eskit_lease.sessions.login IS 'The user that it was logged in as.';
COMMENT ON COLUMN eskit_lease.leases.address IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.leases.application_name IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.address IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.application_name IS 'As in the view sessions.';

-- Tells why a consumer was refused.
CREATE FUNCTION eskit_lease._refusals() RETURNS TABLE (resource text, consumer text, reason text, holder text, refused_at timestamptz) STRICT LANGUAGE c AS 'MODULE_PATHNAME', '_refusals_wrapper';
COMMENT ON FUNCTION eskit_lease._refusals() IS 'Internal: the latest refusals; under the view refusals.';
CREATE VIEW eskit_lease.refusals AS
SELECT r.resource, r.consumer, r.reason, r.holder, r.refused_at
FROM eskit_lease._refusals() AS r;

COMMENT ON VIEW eskit_lease.refusals IS 'The last refusal of each resource to each consumer, for a minute: up to 512, up to 64 of one call.';
COMMENT ON COLUMN eskit_lease.refusals.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.refusals.consumer IS 'The asker.';
COMMENT ON COLUMN eskit_lease.refusals.reason IS 'As lease_acquire answers; queued ones are in the view waiters.';
COMMENT ON COLUMN eskit_lease.refusals.holder IS 'The holder then, if any.';
COMMENT ON COLUMN eskit_lease.refusals.refused_at IS 'Time of the refusal.';

-- The reference in psql.
CREATE FUNCTION eskit_lease.help(topic text DEFAULT NULL) RETURNS text STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'help_wrapper';
COMMENT ON FUNCTION eskit_lease.help(text) IS
'Describes a topic, a function, a view or a setting, by its COMMENT or its own description, as text of up to 100 columns. Without a topic, the default, it lists the topics. Raises 42704 for an unknown topic, with the nearest as a hint; 22023.';
COMMENT ON COLUMN eskit_lease.leases.ended_at IS 'When it was released, or its holder''s session expired; NULL if held.';

-- Lets listeners ask to be notified.
CREATE FUNCTION eskit_lease.notify_me(duration interval) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'notify_me_wrapper';
COMMENT ON FUNCTION eskit_lease.notify_me(interval) IS
'Asks, for a listener, that changes be sent on the channel eskit_lease for this long from now on (duration, 0 to 1 day), where the setting eskit_lease.notify is auto. Takes effect at once, whatever becomes of this transaction; the longest ask of a database counts. Ask again in time, and after a restart of the server. Raises 22004, 22023, 25006 (a standby), 53400 (too many databases), 55000 (not preloaded).';

-- Names of leases are declared.
CREATE TABLE eskit_lease._lease_names (
    name   text COLLATE "C" NOT NULL,
    prefix boolean NOT NULL,
    owner  text COLLATE "C" NOT NULL,
    number bigint NOT NULL DEFAULT nextval('eskit_lease.fence_seq'),
    PRIMARY KEY (name, number)
);
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._lease_names', '');
COMMENT ON TABLE eskit_lease._lease_names IS 'Private: names of leases; see the view declared_names.';
CREATE VIEW eskit_lease.declared_names AS
SELECT n.name, CASE WHEN n.prefix THEN 'prefix' ELSE 'lease' END AS kind, n.owner
FROM eskit_lease._lease_names AS n
UNION ALL
SELECT d.resource, d.kind, d.owner
FROM eskit_lease._declarations AS d
WHERE d.kind <> 'group';
COMMENT ON VIEW eskit_lease.declared_names IS 'Names that may be leased where eskit_lease.declared_names is on.';
COMMENT ON COLUMN eskit_lease.declared_names.name IS 'The name, or the prefix.';
COMMENT ON COLUMN eskit_lease.declared_names.kind IS 'lease, prefix, semaphore or bridge.';
COMMENT ON COLUMN eskit_lease.declared_names.owner IS 'The role that declared it.';
CREATE FUNCTION eskit_lease.lease_declare(name text, prefix boolean DEFAULT false) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'lease_declare_wrapper';
CREATE FUNCTION eskit_lease.lease_undeclare(name text, missing_ok boolean DEFAULT false) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'lease_undeclare_wrapper';
COMMENT ON FUNCTION eskit_lease.lease_declare(text, boolean) IS
'Declares a name, or with prefix also all names that begin with it. Where the setting eskit_lease.declared_names is on, only declared names are leased. Raises 42710 for a name that is declared by this function, 55P03 (another transaction is changing it), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.lease_undeclare(text, boolean) IS
'Drops the declaration of a name or a prefix; leases stay held, and sessions stay in line. Raises 42704 where there is none (with missing_ok it answers false), 42501 unless the caller declared it, 55P03 (another transaction is changing it).';

-- This block stays last. It revokes what ALTER DEFAULT PRIVILEGES has granted on the objects that this script made. An
-- object that replaces a dropped one of its name gets the privileges of that one. It also resets pg_init_privs:
-- otherwise pg_dump would take these privileges for a part of the extension, and not dump them.
DO $$
DECLARE
    former CONSTANT jsonb = current_setting('eskit_lease_update.former');
    made record;
    given record;
    of_before jsonb;
    initial aclitem[];
BEGIN
    FOR made IN
        SELECT 'FUNCTION' AS kind, 'pg_proc'::regclass AS catalog, p.oid, p.proname AS name, p.oid::regprocedure::text AS called, p.proowner AS owner, p.proacl AS acl
        FROM pg_proc AS p
        WHERE p.pronamespace = 'eskit_lease'::regnamespace AND NOT former ? ('FUNCTION ' || p.oid)
        UNION ALL
        SELECT 'TABLE', 'pg_class'::regclass, c.oid, c.relname, c.oid::regclass::text, c.relowner, c.relacl
        FROM pg_class AS c
        WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind IN ('r', 'v', 'S') AND NOT former ? ('TABLE ' || c.oid)
    LOOP
        FOR given IN SELECT DISTINCT a.grantee::regrole::text AS role FROM aclexplode(made.acl) AS a WHERE a.grantee NOT IN (0, made.owner)
        LOOP
            EXECUTE format('REVOKE ALL ON %s %s FROM %s', made.kind, made.called, given.role);
        END LOOP;
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC', made.kind, made.called);
        SELECT o.value INTO of_before
        FROM jsonb_each(former) AS o
        WHERE o.value ->> 'kind' = made.kind
          AND CASE made.name
              -- Readers of views and metrics call these from now on: the roles that may call _standing().
              WHEN '_open_transaction' THEN o.value ->> 'name' = '_standing'
              WHEN '_count_items' THEN o.value ->> 'name' = '_standing'
              WHEN '_count_held' THEN o.value ->> 'name' = '_standing'
              -- Readers of the other views read this one too.
              WHEN '_refusals' THEN o.value ->> 'name' = '_standing'
              WHEN 'refusals' THEN o.value ->> 'name' = 'waiters'
              -- Every role may call help(), like the key functions.
              WHEN 'help' THEN o.value ->> 'name' = 'group_lock_key'
              WHEN '_ended_at' THEN o.value ->> 'name' = '_standing'
              WHEN 'table_unfence' THEN o.value ->> 'name' = 'unfence_table'
              -- The former object of this name was dropped or renamed.
              ELSE o.value ->> 'name' = made.name
                  AND (made.name IN ('fence_table', 'cursor_head', 'next_position') OR pg_describe_object(made.catalog, (o.value ->> 'oid')::oid, 0) IS NULL)
          END;
        CONTINUE WHEN NOT FOUND;
        FOR given IN
            SELECT a.privilege_type, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.is_grantable
            FROM aclexplode((of_before ->> 'acl')::aclitem[]) AS a
            WHERE a.grantee <> made.owner
        LOOP
            EXECUTE format('GRANT %s ON %s %s TO %s%s', given.privilege_type, made.kind, made.called, given.role,
                CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
        END LOOP;
        initial = (of_before ->> 'initial')::aclitem[];
        UPDATE pg_init_privs AS i SET initprivs = initial WHERE i.objoid = made.oid AND i.classoid = made.catalog AND i.objsubid = 0;
        -- Since PostgreSQL 17 a role cannot be dropped while pg_init_privs names it.
        DELETE FROM pg_shdepend AS d
        WHERE d.dbid = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database()) AND d.classid = made.catalog AND d.objid = made.oid
          AND d.deptype = 'i' AND d.refobjid NOT IN (SELECT a.grantee FROM aclexplode(initial) AS a);
    END LOOP;
END $$;
