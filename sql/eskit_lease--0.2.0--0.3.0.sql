-- From 0.2.0 to 0.3.0. Refused where the server still runs the library of 0.2.0.
SELECT eskit_lease._require_library('0.3.0');

-- What there is before, with its privileges: the last block of this script says what for.
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

-- Functions with other arguments are dropped, and made anew. That takes no object of the user's with it.
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
END $$;

-- cursor_commit has another argument.
DROP FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint);
CREATE FUNCTION eskit_lease.cursor_commit(group_name text, partition integer, "position" bigint, fence bigint, expected bigint DEFAULT NULL) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'cursor_commit_from_wrapper';
COMMENT ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) IS
'Moves the cursor of a partition forward to position (from 1 on), with this transaction, under the partition''s fence as fence_check does. expected: where the batch began; for READ COMMITTED, where several transactions may use one fence. False if the cursor is there already, or further. Raises LF001 on a stale fence, 55P03, 40001 as fence_check, and where another transaction under this fence has moved the cursor since this one''s snapshot, or from where it was expected; 22023.';

CREATE FUNCTION eskit_lease._open_transaction(xid xid) RETURNS xid LANGUAGE c STRICT AS 'MODULE_PATHNAME', '_open_transaction_wrapper';
COMMENT ON FUNCTION eskit_lease._open_transaction(xid) IS 'Internal: the open transaction that has a row in hand; under the view blockers.';
REVOKE ALL ON FUNCTION eskit_lease._open_transaction(xid) FROM PUBLIC;

-- It shows what has the row of a lease in hand, too.
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
-- By an equality, which is hashed: there may be many sessions, and many locks.
LEFT JOIN eskit_lease._sessions AS s
    ON ('x' || right(replace(s.session::text, '-', ''), 16))::bit(64)::bigint = CASE WHEN k.objsubid <> 4503 THEN k.key END
-- A prepared transaction has no process; it is known by the lock that it holds on its own id.
LEFT JOIN pg_locks AS x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
    AND x.virtualtransaction = k.virtualtransaction
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid
UNION ALL
-- One transaction at a time has a row: a release with grace needs no other lock, nor does a change of a group.
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

-- partition_assign has another argument, too.
DROP FUNCTION eskit_lease.partition_assign(text, text[], text[]);
CREATE FUNCTION eskit_lease.partition_assign(assignor text, members text[], owners text[], group_name text DEFAULT '') RETURNS text[] IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'partition_assign_in_wrapper';
COMMENT ON FUNCTION eskit_lease.partition_assign(text, text[], text[], text) IS
'Who is to own each partition: for each element of owners, its present owner or NULL, one of members; all NULL without members. Shares differ by at most one. Assignors: range (neighbouring partitions to each member, in the byte order of their UTF-8 ids), sticky (as few partitions move as balance allows). group_name: sticky gives the larger shares to the first members by group_lock_key(group_name || '':'' || member), so that many groups of few partitions are spread; with an empty one, the default, to those who have them. Whatever the order of members, the answer is the same. Raises 22004, and 22023 for an unknown assignor, a member given twice, more than 100000 members, or not 1 to 32768 partitions.';

CREATE FUNCTION eskit_lease.group_release_many(group_name text, partitions integer[], fences bigint[]) RETURNS TABLE (partition integer, released boolean) LANGUAGE c AS 'MODULE_PATHNAME', 'group_release_many_wrapper';
COMMENT ON FUNCTION eskit_lease.group_release_many(text, integer[], bigint[]) IS
'The same for many partitions, each with its fence, in one step: a row for each, and whether it was held. Raises 22023, too, for arrays of different lengths and for a partition that is given twice.';

-- The bits below are drawn by chance at each start.
ALTER SEQUENCE eskit_lease.fence_seq INCREMENT 64;
ALTER SEQUENCE eskit_lease._item_seq INCREMENT 64;

-- The free permits of a semaphore, where there are many others.
CREATE INDEX _leases_free ON eskit_lease._leases (resource, fence) WHERE session IS NULL AND declared;

-- Rows of leases are found by their last version; nothing looks at all versions of one with each change.
ALTER TABLE eskit_lease._leases DROP CONSTRAINT _leases_pkey;
ALTER TABLE eskit_lease._leases REPLICA IDENTITY FULL;
CREATE INDEX _leases_seat ON eskit_lease._leases (resource, slot, fence);
DROP INDEX eskit_lease._leases_session;
CREATE INDEX _leases_session ON eskit_lease._leases (session, resource, slot) WHERE session IS NOT NULL;

-- So are run-once keys.
ALTER TABLE eskit_lease._executions DROP CONSTRAINT _executions_pkey, ADD PRIMARY KEY (key, fence);
-- And declarations.
ALTER TABLE eskit_lease._declarations
    DROP CONSTRAINT _declarations_pkey,
    ADD COLUMN number bigint NOT NULL DEFAULT nextval('eskit_lease.fence_seq'),
    ADD PRIMARY KEY (resource, number);

-- What changes in groups changes no index.
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

-- Sessions and places that are gone are not looked at.
DROP INDEX eskit_lease._sessions_consumer;
CREATE INDEX _sessions_consumer ON eskit_lease._sessions (consumer, role, opened_at) WHERE NOT private;
DROP INDEX eskit_lease._waiters_session;
CREATE INDEX _waiters_session ON eskit_lease._waiters (session, resource, place);

-- Fences below its value are of before.
CREATE SEQUENCE eskit_lease._refence AS bigint MINVALUE 0 START 0;
COMMENT ON SEQUENCE eskit_lease._refence IS 'Private: the fence below which holders are to get new ones.';
CREATE FUNCTION eskit_lease.lease_refence_all() RETURNS bigint STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'lease_refence_all_wrapper';
COMMENT ON FUNCTION eskit_lease.lease_refence_all() IS
'Has every holder in this database get a new fence, as after a promotion: lease_renew says refence, lease_acquire gives it (refenced), partitions are given out anew. Returns the first fence that is not of before. For a server that was started from a storage snapshot, which nothing tells from a crash. At once, whatever becomes of this transaction; what is held stays held. Goes to the server log. Raises 25006. For administrators.';

-- A session that has found no place is told so.
COMMENT ON FUNCTION eskit_lease.session_heartbeat(uuid) IS
'Keeps the session, and with it every lease that it holds, for another TTL. Writes no row and no WAL. Reasons: alive, unconfirmed (trust_ms is 0 until synchronous standbys have confirmed that this is the primary, see eskit_lease.confirm_interval), sessions_full (all places of eskit_lease.max_sessions are taken since a restart or promotion: it keeps what it holds for trust_ms, and no longer), closing (its end is being committed), expired (for good, unless the server crashes before anything is taken from it), unknown_session. Raises 42501 for another role''s session.';
COMMENT ON FUNCTION eskit_lease.session_wait(uuid, bigint, interval) IS
'A heartbeat that answers once the revision of the session is greater than the one given, at the timeout (default and limit eskit_lease.max_wait), or in time for the next heartbeat. Reasons: changed, timeout, heartbeat, unconfirmed, sessions_full (as for session_heartbeat), wait_limit (too many waiting calls, answered at once), closing, expired, unknown_session.';
COMMENT ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean) IS
'Asks for the lease of a resource (1 to 255 bytes), or for any free permit of a semaphore (slot tells which), without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence, also out of grace), refenced (new fence after a promotion); held (holder says by whom; NULL for a semaphore), busy (another transaction is changing it), awaited (others are in line), bridged (free, but a bridge: given to the first in line), queued, draining, sessions_full (nothing new for a session that has found no place, see session_heartbeat), closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held; with eskit_lease.confirm_interval 0 for what this transaction grants: ask session_heartbeat after its commit. Raises 42501, 22004, 22023, 42809 (a group), 53400 (too many places in queues).';

-- Counters begin anew when a database has given up its place.
COMMENT ON FUNCTION eskit_lease.stats() IS 'Counters of this database since the second since (since 1970: the server''s start, or when the database got its place; they grow), and the numbers of living sessions, of resources that wait for the worker, and of waiting session_wait calls. slots_taken, slots_of_ended: slots of eskit_lease.max_sessions that are not free, in all databases, and those among them whose sessions have ended. confirmed_ms_ago: how long ago the last acknowledged confirmation was begun (see eskit_lease.confirm_interval), NULL before the first. databases_in_use: how many of the places of eskit_lease.max_databases are in use, by sessions, waiting calls, or work to do; a database that is not in use gives its place up for one that needs it, and counts anew when it has one again. unserved_ms: how long something has been due here while PostgreSQL has no process for the worker (see max_worker_processes) and no waiting session_wait call does it; 0 for not.';

-- A claim is bounded by bytes.
COMMENT ON FUNCTION eskit_lease.item_claim(text, uuid, integer) IS
'Claims up to max_items (1 to 1000) items for the session, without ever waiting; counts as its heartbeat. A row for each, none if there is nothing; it ends with the item that brings the payloads to 16 MiB, so that it does not take gigabytes of memory, and session_wait answers changed at once then; all under one fence, for item_done and its like. In a queue with an order at most one of each key, or partition. A session that is given less is woken when there is more, or when an item is due. The claim lasts until they are finished, or the session ends. Raises LF003 for a session that has ended, 55000 for one that drains or is no member of the queue''s group, 42704, 42501, 22023, 22004.';

-- Which item of a key comes next: claims pass over those that wait, from now on.
CREATE INDEX _items_key ON eskit_lease._items (queue, partition, key, place) WHERE key IS NOT NULL;
CREATE INDEX _later_key ON eskit_lease._later (queue, partition, key, due) WHERE key IS NOT NULL;

-- The views say what they have in fewer words.
COMMENT ON VIEW eskit_lease.sessions IS 'Sessions with rows; shared memory tells their states.';
COMMENT ON COLUMN eskit_lease.sessions.session IS 'The handle; NULL unless the reader may use it or is an administrator.';
COMMENT ON COLUMN eskit_lease.sessions.consumer IS 'The name that the process chose.';
COMMENT ON COLUMN eskit_lease.sessions.state IS 'alive, draining, closing (its end is committing), expired (not swept yet), or unknown (on a standby).';
COMMENT ON COLUMN eskit_lease.sessions.ttl_ms IS 'Time to live after a heartbeat, in milliseconds.';
COMMENT ON COLUMN eskit_lease.sessions.trust_ms IS 'Milliseconds left without another heartbeat, as far as this server vouches.';
COMMENT ON COLUMN eskit_lease.sessions.expires_at IS 'The same as a time, for people; NULL if expired.';
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
COMMENT ON COLUMN eskit_lease.semaphores.held IS 'How many hold it; after it was made smaller perhaps more than permits.';
COMMENT ON COLUMN eskit_lease.semaphores.waiters IS 'Places in line.';
COMMENT ON VIEW eskit_lease.bridges IS 'Bridges to advisory locks and to rows; the views leases and waiters have their holders and waiters.';
COMMENT ON COLUMN eskit_lease.bridges.lock_key IS 'The key for pg_advisory_lock; NULL for a row.';
COMMENT ON COLUMN eskit_lease.bridges.key IS 'The row''s primary key.';
COMMENT ON COLUMN eskit_lease.bridges.owner_column IS 'The column that names the owner.';
COMMENT ON COLUMN eskit_lease.bridges.until_column IS 'The column that says until when.';
COMMENT ON COLUMN eskit_lease.bridges.held IS 'Whether the worker has the lock, so that fences can be checked; or the row, which each check looks at.';
COMMENT ON COLUMN eskit_lease.bridges.blocked_by IS 'Processes that hold the lock exclusively, then those that wait for that; 0 for a prepared transaction. NULL for a row, which names its owner.';
COMMENT ON COLUMN eskit_lease.bridges.trouble IS 'Why the worker could not take the row at its last try, so that no other session gets the lease; NULL if all is well, as while another owns the row.';
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
COMMENT ON COLUMN eskit_lease.group_partitions.revoke_in IS 'The owner''s time left to release it; NULL for a draining one, which has no limit.';
COMMENT ON VIEW eskit_lease.group_lag IS 'Progress and lag of each group in each partition.';
COMMENT ON COLUMN eskit_lease.group_lag.position IS 'The cursor: all positions up to it are done.';
COMMENT ON COLUMN eskit_lease.group_lag.head IS 'The newest position reported by cursor_report_head(); NULL without a report.';
COMMENT ON COLUMN eskit_lease.group_lag.acked_ahead IS 'Acknowledged positions beyond the cursor.';
COMMENT ON COLUMN eskit_lease.group_lag.fence IS 'The fence of the cursor''s last commit.';
COMMENT ON COLUMN eskit_lease.group_lag.committed_at IS 'When that was.';
COMMENT ON VIEW eskit_lease.executions IS 'Run-once keys; done and resolved ones for eskit_lease.execution_retention.';
COMMENT ON COLUMN eskit_lease.executions.state IS 'running, done, failed, in_doubt (its session ended first), or retry (free for another attempt).';
COMMENT ON COLUMN eskit_lease.executions.consumer IS 'The consumer of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.role IS 'The role of its session, by its name then.';
COMMENT ON COLUMN eskit_lease.executions.attempts IS 'Attempts so far.';
COMMENT ON COLUMN eskit_lease.executions.started_at IS 'Start of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.result IS 'The result, if done.';
COMMENT ON COLUMN eskit_lease.executions.retry_in_doubt IS 'Whether another attempt may begin without a decision when it is in doubt.';
COMMENT ON COLUMN eskit_lease.executions.resolved_by IS 'The role that resolved it, if any.';
COMMENT ON COLUMN eskit_lease.fenced_tables.resource IS 'The resource that writers must hold; NULL if another trigger has replaced the one that checks it.';
COMMENT ON COLUMN eskit_lease.fenced_tables.partition_column IS 'The column with each row''s partition, if the partitions of a group fence it one by one.';
COMMENT ON COLUMN eskit_lease.fenced_tables.checks_each IS 'Whether it is checked after each statement or each row.';
COMMENT ON COLUMN eskit_lease.fenced_tables.complete IS 'False if table_fence() must be called again: a trigger was disabled, dropped or replaced, the table was attached to another, or has a partition without a fence for TRUNCATE. False too in inheritance, where it cannot be held.';
COMMENT ON VIEW eskit_lease.blockers IS 'Open transactions that keep leases from changing hands, or keep a group, a semaphore, a bridge or a session as it is, by connection or prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.doing IS 'fenced, fenced by the session, releasing, granting to the session, ending the session; changing: the transaction has the lease''s row to acquire it, release it (also with grace), or take it back; changing the group, the semaphore, the bridge, or the session (to drain or to end it).';
COMMENT ON COLUMN eskit_lease.blockers.resource IS 'The resource, if it is one.';
COMMENT ON COLUMN eskit_lease.blockers.granted IS 'False while the transaction itself waits.';
COMMENT ON VIEW eskit_lease.queues IS 'Queues of work items. Counts end at 10001, so that long queues cost little.';
COMMENT ON COLUMN eskit_lease.queues.queue IS 'The name, in the name space of queues.';
COMMENT ON COLUMN eskit_lease.queues.ordering IS 'none: about in the order of adding; key: the items of a key one at a time, in order; fifo: so all items of a partition.';
COMMENT ON COLUMN eskit_lease.queues.max_attempts IS 'Attempts until an item is dead.';
COMMENT ON COLUMN eskit_lease.queues.retry_backoff IS 'Pause before the first retry of an item; doubles with each further one, up to 1 hour.';
COMMENT ON COLUMN eskit_lease.queues.group_name IS 'The group whose partitions decide which session claims what; NULL without one.';
COMMENT ON COLUMN eskit_lease.queues.claims IS 'item_claim calls with unfinished items.';
COMMENT ON COLUMN eskit_lease.queues.items IS 'Ready and claimed items; 10001 for more than 10000.';
COMMENT ON COLUMN eskit_lease.queues.later IS 'Items that are not due yet; 10001 for more than 10000.';
COMMENT ON COLUMN eskit_lease.queues.dead IS 'Dead items; 10001 for more than 10000.';
COMMENT ON COLUMN eskit_lease.queues.ready_since IS 'When its first ready item, of any partition, was added; NULL if none is.';
COMMENT ON VIEW eskit_lease.items IS 'Unfinished work items. Read it with a condition on queue: there may be millions.';
COMMENT ON COLUMN eskit_lease.items.id IS 'The item''s id, for ever.';
COMMENT ON COLUMN eskit_lease.items.state IS 'ready (with an ordering, perhaps behind another), claimed, expired (its claimer has ended; about to be ready), or later (claimed from its run_at on).';
COMMENT ON COLUMN eskit_lease.items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.items.attempt IS 'How often it was claimed.';
COMMENT ON COLUMN eskit_lease.items.error IS 'Its last error.';
COMMENT ON COLUMN eskit_lease.items.run_at IS 'When an item that is later was or will be due.';
COMMENT ON COLUMN eskit_lease.items.consumer IS 'The claimer.';
COMMENT ON VIEW eskit_lease.dead_items IS 'Dead letters: items that failed as often as their queue allows, for eskit_lease.dead_item_retention. item_requeue() retries them.';
COMMENT ON COLUMN eskit_lease.dead_items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.dead_items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.dead_items.error IS 'Its last error; session ended: its claimer ended before it was finished.';
COMMENT ON VIEW eskit_lease.position_blockers IS 'Open transactions of all databases that have written, by connection or prepared transaction, but for the reader''s own: position_horizon() lags behind the oldest.';
COMMENT ON COLUMN eskit_lease.position_blockers.database IS 'The database that it writes.';
COMMENT ON COLUMN eskit_lease.position_blockers.role IS 'Its role.';
COMMENT ON COLUMN eskit_lease.position_blockers.behind IS 'Transaction ids given since; the greatest is what holds the horizon back.';
COMMENT ON VIEW eskit_lease.history IS 'Lost leases, for eskit_lease.history_retention; with eskit_lease.history_grants also ordinary grants and releases. Read it with a condition on at.';
COMMENT ON COLUMN eskit_lease.history.event IS 'expired (its session ended without closing, as that of a lock does that is not released), taken_over (by a new session of the same consumer), revoked (a partition that was not released in time), forced (by an administrator); with history_grants also granted and released.';
COMMENT ON COLUMN eskit_lease.history.slot IS 'Permit of a semaphore or partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.history.fence IS 'The fence lost or granted.';
COMMENT ON COLUMN eskit_lease.history.consumer IS 'The consumer that lost it or was granted it; NULL if a session released it by closing.';
COMMENT ON COLUMN eskit_lease.history.next_consumer IS 'The consumer that got it in the same step; NULL if none.';
COMMENT ON COLUMN eskit_lease.history.next_fence IS 'The fence of that consumer.';
COMMENT ON COLUMN eskit_lease.history.forced_by IS 'The role that took it by force, by its name then.';
COMMENT ON COLUMN eskit_lease.history.why IS 'The reason that this role gave.';
COMMENT ON VIEW eskit_lease.flapping IS 'Resources that changed hands within the last hour, by the history.';
COMMENT ON COLUMN eskit_lease.flapping.changes IS 'Losses (with history_grants also grants) of the slot with most of them. The columns after it count all slots.';
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
COMMENT ON COLUMN eskit_lease.top.held_for IS 'How long that is.';
COMMENT ON COLUMN eskit_lease.top.trust_ms IS 'Milliseconds left to the holders'' sessions without another heartbeat: the least of them.';
COMMENT ON COLUMN eskit_lease.top.waiters IS 'Places in line.';
COMMENT ON COLUMN eskit_lease.top.open_for IS 'Age of the transaction that keeps it from changing hands; see the view blockers.';
COMMENT ON COLUMN eskit_lease.top.losses IS 'Losses within the last hour of the slot with most losses; see the view flapping.';
COMMENT ON COLUMN eskit_lease.top.lag IS 'Positions that a group has to do, if heads are reported.';
COMMENT ON COLUMN eskit_lease.leases.session IS 'The holder''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.session IS 'The waiter''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_members.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_partitions.session IS 'The owner''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.executions.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.items.session IS 'The claimer''s session; NULL as in the view sessions.';

-- One grammar, noun_verb. What has another name is renamed, so that the users' defaults, views and triggers, which know a function by its oid, go on
-- as they are. The former names stay, as functions that warn.
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
'A position for a row, as the default of a column: position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(). Greater than all positions of transactions with lower ids, and of the same transaction before; to be written by the transaction that draws it. At most 1048576 in one transaction (54000).';
COMMENT ON FUNCTION eskit_lease.require_fence() IS
'The trigger function of fenced tables; made by table_fence().';

-- What drops says by 42704 that there is nothing of that name, or with missing_ok by false.
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
'Drops a queue; with items, also its items, dead ones too. Raises 55006 if it has items otherwise, 55P03 while one of them is in the hands of an open transaction, 42704 where there is no such queue (with missing_ok it answers false), 42501.';
COMMENT ON FUNCTION eskit_lease.bridge_drop(text, boolean) IS
'Drops a bridge that is neither held nor waited for; its name is one like any other then. A row it leads to is free within 30 seconds. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it). For administrators.';
COMMENT ON FUNCTION eskit_lease.table_unfence(regclass, boolean) IS
'Removes the fence: roles write the table again by their privileges alone. For the table''s owner. Raises 42704 for a table that is not fenced; with missing_ok it answers false. Raises 42501, 22004.';
-- That is the surface.

-- The functions name who does what.
COMMENT ON FUNCTION eskit_lease.item_fail(bigint, bigint, text, interval) IS
'An item has failed, with an error (8192 bytes of it are kept). True: it will be tried again after retry_in, NULL for the backoff of its queue. False: that was its last attempt, and it is dead now. For one item, as each has its own error. Raises as item_done.';
COMMENT ON FUNCTION eskit_lease.lease_release_many(text[], uuid) IS
'Releases what the session holds of up to 100000 resources: a row for each distinct resource. By the session, and not by fences: it gives up whatever it has of them, as at the end of its work. lease_release gives up one grant, which its fence names.';
COMMENT ON FUNCTION eskit_lease.fence_check(text, bigint) IS
'Asserts that the lease is held under this fence, to the end of the transaction: no other session gets it before. Call it in each transaction that writes, as a statement of its own before the data to write is read: inside a function, the statement around that may have an older snapshot. Raises LF001 when the fence is no longer valid, 55P03 while the lease is changing hands, when a partition was to be released by now, or when the lock or the row of a bridge is not to be had, 40001 when it was granted after what this transaction reads, 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.semaphore_resize(text, integer) IS
'Changes the number of permits. One that shrinks takes effect as permits come back. Raises 42704, 42809 (a group), 42501 unless the caller made it, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.bridge_create(text, bigint) IS
'Bridges a name to an advisory lock, for workers that hold pg_advisory_lock(lock_key) and workers that hold the lease to keep each other out. The worker gives the lease to the first in line while it has the lock in share mode; fence_check shares the lock to the end of the transaction, or raises 55P03. Whenever the worker has lost the lock and has it back the holder gets a new fence. Several names may have one lock. Raises 42710 for a name that is declared, held or waited for, 53400 (more than 250 bridges), 22023, 22004. For administrators.';
COMMENT ON FUNCTION eskit_lease.bridge_create_row(text, regclass, text, text, text) IS
'Bridges a name to a row by which workers lease, for those that own the row and those that hold the lease to keep each other out. An old worker owns the row of primary key key while owner_column (text or varchar) names it and until_column (timestamptz, or timestamp in UTC, with a warning) is not over. The worker gives the lease to the first in line while it owns the row as eskit_lease:resource:number; fence_check locks the row in share mode to the end of the transaction, or raises 55P03. When another has owned the row meanwhile the holder gets a new fence. For administrators, of a table of theirs that is plain. Raises 42501 (not theirs), 42809 (not plain), 42703, 42P01, P0002 (no such row), 22P02 and 22003 (no such key), 55000 (published without a replica identity), 42710 for a name that is declared, held or waited for and for a row that is bridged, 55P03 (the table is locked), 53400 (more than 250 bridges), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.group_alter(text, text, interval, interval) IS
'Changes settings of a group; NULL, the default, keeps one. Raises 42704, 42809, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.group_resize(text, integer, boolean) IS
'Changes the number of partitions, and so which key belongs where. Raises 55006 while any partition is owned; with drain, all owners are asked to release theirs first, within the rebalance_timeout. Every cursor then begins at the least position that any had: nothing is skipped, some may be seen again. The present number calls a resize off that is being drained for. True once it is done, false while it is being drained. Raises 42704, 42809, 42501, 22023, 55P03 (another transaction is changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_join(text, uuid) IS
'Makes the session a member of the group, once; counts as its heartbeat. Partitions come by and by, as others release them: see group_assignment. Returns the generation. Raises LF003 for a session that has ended, 55000 for one that drains, 42704, 42809, 42501, 55P03 (another transaction is changing or dropping the group).';
COMMENT ON FUNCTION eskit_lease.group_leave(text, uuid) IS
'Ends the membership, and releases the session''s partitions to their targets. Waits for its own fenced transactions, under lock_timeout. False if it was no member. Raises 42704, 42809, 42501, 55P03 (lock_timeout ran out, or another transaction is changing the group).';
COMMENT ON FUNCTION eskit_lease.group_assignment(text, uuid) IS
'The partitions that the session owns; counts as its heartbeat. Ask whenever the revision of the session has changed. state: owned, or revoking: finish, commit the cursor and release it with group_release, within revoke_in (NULL for a session that drains: in its own time). Raises LF003 for a session that has ended, 55000 for one that is no member.';
COMMENT ON FUNCTION eskit_lease.group_release(text, integer, bigint) IS
'Releases a partition to its target; the answer to a revocation. Waits for the owner''s own fenced transactions, under lock_timeout. False if it is not owned under this fence.';
COMMENT ON FUNCTION eskit_lease.execution_begin(text, uuid, boolean) IS
'Begins an attempt of a run-once key; counts as a heartbeat of the session. first: true for exactly one caller per attempt, whose fence is for execution_finish and execution_fail. state: running, done (with its result), failed, or in_doubt: the session that ran it has ended. Never waits: running, with nothing else, while another transaction has it in hand. The session that runs it is told its fence again. retry_in_doubt: once this attempt is in doubt, the next call begins another. Raises 40001 where another attempt would begin under REPEATABLE READ or SERIALIZABLE by a snapshot from before the last one ended, LF003 for a session that has ended, 55000 for one that drains, 42501.';
COMMENT ON FUNCTION eskit_lease.position_raise(bigint) IS
'Has all positions to come be above this one (0 to 4611686018427387903), at once, whatever becomes of this transaction. For rows that came with greater positions: copied from elsewhere, or from before the extension was dropped and made again. Waits for no transaction; the horizon stands below all that transactions open now have drawn until they have ended. False if all to come are above it anyhow. Goes to the server log. Raises 22023, 22004, 25006, 53400, 55000. For administrators.';
COMMENT ON FUNCTION eskit_lease.grant_consumer(regrole) IS 'Lets a role open sessions, use leases, locks and fences, make and use semaphores and groups, move cursors, draw and read positions, run what is run once, make queues and work off their items, and fence tables of its own. For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.grant_monitor(regrole) IS 'Lets a role read the views and stats(), report heads with cursor_report_head(), and call position_horizon(). For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.queue_alter(text, integer, interval) IS
'Changes settings of a queue; NULL, the default, keeps one. Raises 42704, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';

-- The last block: new ones belong above it. What this script has made gets no privileges but its owner's, whatever ALTER DEFAULT PRIVILEGES
-- gives; and where it takes the place of what is dropped above, under the same name, the privileges of that. Those must be such as pg_dump dumps: what
-- a script grants would count as a part of the extension (pg_init_privs).
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
              -- Readers of the view blockers call it from now on, and they are those who may call this one.
              WHEN '_open_transaction' THEN o.value ->> 'name' = '_standing'
              WHEN 'table_unfence' THEN o.value ->> 'name' = 'unfence_table'
              -- It is there no more, or has another name.
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
        -- From 17 on roles that are named there cannot be dropped.
        DELETE FROM pg_shdepend AS d
        WHERE d.dbid = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database()) AND d.classid = made.catalog AND d.objid = made.oid
          AND d.deptype = 'i' AND d.refobjid NOT IN (SELECT a.grantee FROM aclexplode(initial) AS a);
    END LOOP;
END $$;
