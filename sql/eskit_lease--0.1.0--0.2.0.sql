-- From 0.1.0 to 0.2.0. Where the server still runs the library of 0.1.0, PostgreSQL finds no such function in it, and nothing is changed.
CREATE FUNCTION eskit_lease._require_library(version text) RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', '_require_library_wrapper';
REVOKE ALL ON FUNCTION eskit_lease._require_library(text) FROM PUBLIC;
COMMENT ON FUNCTION eskit_lease._require_library(text) IS 'Internal: what an update begins with; refuses it where the library that runs is older than this version.';
SELECT eskit_lease._require_library('0.2.0');

CREATE TABLE eskit_lease._deaths (
    session uuid NOT NULL
);
CREATE INDEX _deaths_session ON eskit_lease._deaths (session);
-- Without a key, rows are not deleted where a publication has all tables.
ALTER TABLE eskit_lease._deaths REPLICA IDENTITY FULL;
REVOKE ALL ON TABLE eskit_lease._deaths FROM PUBLIC;
COMMENT ON TABLE eskit_lease._deaths IS 'Private: sessions that no restart revives.';

CREATE TABLE eskit_lease._bridges (
    resource     text COLLATE "C" PRIMARY KEY,
    lock_key     bigint,
    -- Or a row: its table and the value of its primary key, as text, and the columns by which old workers lease it.
    target       regclass,
    key          text COLLATE "C",
    owner_column text COLLATE "C",
    until_column text COLLATE "C",
    -- Why the worker cannot have the row.
    trouble      text COLLATE "C",
    UNIQUE (target, key),
    CHECK (num_nonnulls(lock_key, target) = 1 AND num_nulls(target, key, owner_column, until_column) IN (0, 4))
);
SELECT pg_catalog.pg_extension_config_dump('eskit_lease._bridges', '');
COMMENT ON TABLE eskit_lease._bridges IS 'Private: locks and rows that names are bridged to; see the view bridges.';
COMMENT ON TABLE eskit_lease._declarations IS 'Private: names of semaphores, groups and bridges.';

CREATE FUNCTION eskit_lease.bridge_create(resource text, lock_key bigint) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'bridge_create_wrapper';
CREATE FUNCTION eskit_lease.bridge_create_row(resource text, target regclass, key text, owner_column text, until_column text) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'bridge_create_row_wrapper';
CREATE FUNCTION eskit_lease.bridge_drop(resource text) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'bridge_drop_wrapper';
CREATE VIEW eskit_lease.bridges AS -- lock class as in src/guard.rs
SELECT b.resource,
       b.lock_key,
       b.target,
       b.key,
       b.owner_column,
       b.until_column,
       h.pid IS NOT NULL AS held,
       CASE WHEN b.target IS NULL THEN coalesce(k.blocked_by, '{}') END AS blocked_by,
       b.trouble,
       d.owner
FROM eskit_lease._bridges AS b
JOIN eskit_lease._declarations AS d ON d.resource = b.resource
LEFT JOIN (
    SELECT (k.classid::bigint << 32) | k.objid::bigint AS key, k.pid
    FROM pg_locks AS k
    WHERE k.locktype = 'advisory' AND k.objsubid = 4509 AND k.mode = 'ExclusiveLock' AND k.granted
      AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS h
    ON h.key = eskit_lease.group_lock_key(b.resource)
LEFT JOIN (
    SELECT (k.classid::bigint << 32) | k.objid::bigint AS key, array_agg(coalesce(k.pid, 0) ORDER BY k.granted DESC, k.pid) AS blocked_by
    FROM pg_locks AS k
    WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.mode = 'ExclusiveLock'
      AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    GROUP BY 1) AS k
    ON k.key = b.lock_key;
REVOKE ALL ON TABLE eskit_lease._bridges, eskit_lease.bridges FROM PUBLIC;
REVOKE ALL ON FUNCTION eskit_lease.bridge_create(text, bigint), eskit_lease.bridge_create_row(text, regclass, text, text, text), eskit_lease.bridge_drop(text) FROM PUBLIC;
COMMENT ON FUNCTION eskit_lease.bridge_create(text, bigint) IS
'Bridges a name to an advisory lock, for workers that hold pg_advisory_lock(lock_key) and workers that hold the lease to keep each other out. The worker gives the lease, to who is in line, while it has the lock in share mode; fence_check shares the lock to the end of the transaction, or raises 55P03. Whenever the worker has lost the lock and has it back the holder gets a new fence. Several names may have one lock. Raises 42710 for a name that is declared, held or waited for, 53400 (more than 250 bridges), 22023, 22004. For administrators.';
COMMENT ON FUNCTION eskit_lease.bridge_create_row(text, regclass, text, text, text) IS
'Bridges a name to a row by which workers lease, for those that own the row and those that hold the lease to keep each other out. An old worker owns the row of primary key key while owner_column (text or varchar) names it and until_column (timestamptz, or timestamp in UTC, of which a warning tells) is not over. The worker gives the lease, to who is in line, while it owns the row as eskit_lease:resource:number; fence_check locks the row in share mode to the end of the transaction, or raises 55P03. When another has owned the row meanwhile the holder gets a new fence. For administrators, of a table of theirs that is plain. Raises 42501 (not theirs), 42809 (not plain), 42703, 42P01, P0002 (no such row), 22P02 and 22003 (no such key), 55000 (published without a replica identity), 42710 for a name that is declared, held or waited for and for a row that is bridged, 55P03 (the table is locked), 53400 (more than 250 bridges), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.bridge_drop(text) IS
'Makes a bridge a name as any other, once nobody holds it or waits for it. A row it leads to is free within 30 seconds. False if there is nothing of that name. Raises 55006 otherwise, 42809, 42501, 55P03 (somebody is just changing it). For administrators.';
COMMENT ON VIEW eskit_lease.bridges IS 'Bridges to advisory locks, and to rows that workers lease by; who holds and waits for their leases is in the views leases and waiters.';
COMMENT ON COLUMN eskit_lease.bridges.resource IS 'The name, for lease_acquire.';
COMMENT ON COLUMN eskit_lease.bridges.lock_key IS 'The key of the lock, as for pg_advisory_lock; NULL for a row.';
COMMENT ON COLUMN eskit_lease.bridges.target IS 'The table of the row.';
COMMENT ON COLUMN eskit_lease.bridges.key IS 'The value of its primary key.';
COMMENT ON COLUMN eskit_lease.bridges.owner_column IS 'The column that names its owner.';
COMMENT ON COLUMN eskit_lease.bridges.until_column IS 'The column that says until when.';
COMMENT ON COLUMN eskit_lease.bridges.held IS 'Whether the worker has the lock, and fences can be checked; or whether it has the row, for which they are checked with the row itself.';
COMMENT ON COLUMN eskit_lease.bridges.blocked_by IS 'Processes that have the lock exclusively, and then those that wait for that; 0 for a prepared transaction. NULL for a row, which names its owner itself.';
COMMENT ON COLUMN eskit_lease.bridges.trouble IS 'Why the worker could not have the row when it last tried, and nobody new gets the lease; NULL if nothing is wrong, as while another owns the row.';
COMMENT ON COLUMN eskit_lease.bridges.owner IS 'The role that made it, and may drop it.';

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
    why           text
);
CREATE INDEX _history_at ON eskit_lease._history (at);
ALTER TABLE eskit_lease._history REPLICA IDENTITY FULL;
REVOKE ALL ON TABLE eskit_lease._history FROM PUBLIC;
COMMENT ON TABLE eskit_lease._history IS 'Private: what became of leases; see the view history.';

-- pg_extension, as for most views: nobody writes through it.
CREATE VIEW eskit_lease.history AS
SELECT h.at, h.event, h.resource, h.slot, h.fence, h.consumer, h.next_consumer, h.next_fence, h.forced_by, h.why
FROM pg_extension AS e
CROSS JOIN eskit_lease._history AS h
WHERE e.extname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.history IS 'Who has lost which lease, and how, for eskit_lease.history_retention; with eskit_lease.history_grants ordinary grants and releases too. To be read with a condition on at.';
COMMENT ON COLUMN eskit_lease.history.at IS 'When it happened.';
COMMENT ON COLUMN eskit_lease.history.event IS 'expired (its session ended without closing, as that of a lock does which nobody releases), taken_over (by a new session of the same consumer), revoked (a partition that was not released in time), forced (by an administrator); and with history_grants granted and released.';
COMMENT ON COLUMN eskit_lease.history.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.history.slot IS 'Which of its slots: permit of a semaphore, partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.history.fence IS 'The fence that was lost, or granted.';
COMMENT ON COLUMN eskit_lease.history.consumer IS 'Who lost it, or was granted it; NULL for what a session has released by closing.';
COMMENT ON COLUMN eskit_lease.history.next_consumer IS 'Who got it in the same step; NULL if nobody did.';
COMMENT ON COLUMN eskit_lease.history.next_fence IS 'Under which fence.';
COMMENT ON COLUMN eskit_lease.history.forced_by IS 'The role that took it by force, by the name that it had.';
COMMENT ON COLUMN eskit_lease.history.why IS 'Why, in the words of whoever did.';

CREATE VIEW eskit_lease.flapping AS
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
-- Counted by slot: whoever crashes once loses all partitions that it has, and that is no flapping.
FROM (SELECT h.*, row_number() OVER (PARTITION BY h.resource, h.slot, CASE WHEN h.event IN ('granted', 'released') THEN h.event END) AS nth
      FROM eskit_lease._history AS h
      WHERE h.at > statement_timestamp() - interval '1 hour') AS h
GROUP BY h.resource;

COMMENT ON VIEW eskit_lease.flapping IS 'What has changed hands within the last hour, by the history.';
COMMENT ON COLUMN eskit_lease.flapping.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.flapping.changes IS 'How often one of its slots was lost, or with history_grants granted: the one that changed hands most often. The columns after it are of all slots.';
COMMENT ON COLUMN eskit_lease.flapping.expired IS 'How often a holder''s session ended without closing.';
COMMENT ON COLUMN eskit_lease.flapping.taken_over IS 'How often a new session of the same consumer took it over.';
COMMENT ON COLUMN eskit_lease.flapping.revoked IS 'How often a partition was taken from an owner that did not release it in time.';
COMMENT ON COLUMN eskit_lease.flapping.forced IS 'How often an administrator took it.';
COMMENT ON COLUMN eskit_lease.flapping.granted IS 'How often it was granted, with history_grants.';
COMMENT ON COLUMN eskit_lease.flapping.slots IS 'How many of its slots it was about.';
COMMENT ON COLUMN eskit_lease.flapping.consumers IS 'How many consumers.';
COMMENT ON COLUMN eskit_lease.flapping.last_at IS 'When the last time.';

CREATE VIEW eskit_lease.top AS
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
-- Chosen first: to tell who lives is what takes time, and there may be 100,000 leases.
FROM (SELECT n.resource, sum(n.waiters)::bigint AS waiters, min(n.waiting_since) AS waiting_since, max(n.losses) AS losses, max(n.at) AS at
      FROM (SELECT w.resource, 1 AS waiters, w.queued_at AS waiting_since, 0 AS losses, w.queued_at AS at
            FROM eskit_lease._waiters AS w
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

COMMENT ON VIEW eskit_lease.top IS 'Where most is going on, for \watch: up to 40 resources, first those that are waited for longest, then those that were lost most often within the last hour, then those that were granted last.';
COMMENT ON COLUMN eskit_lease.top.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.top.kind IS 'lease, semaphore, group or bridge.';
COMMENT ON COLUMN eskit_lease.top.held IS 'How many of its slots living sessions have.';
COMMENT ON COLUMN eskit_lease.top.slots IS 'How many it has.';
COMMENT ON COLUMN eskit_lease.top.consumer IS 'Who has had one for longest.';
COMMENT ON COLUMN eskit_lease.top.held_for IS 'For how long.';
COMMENT ON COLUMN eskit_lease.top.trust_ms IS 'Milliseconds that the holders'' sessions have left without another heartbeat: the least of them.';
COMMENT ON COLUMN eskit_lease.top.waiters IS 'Number of places in the queue.';
COMMENT ON COLUMN eskit_lease.top.waiting_for IS 'How long the first has waited.';
COMMENT ON COLUMN eskit_lease.top.open_for IS 'For how long a transaction has been open that keeps it from changing hands; see the view blockers.';
COMMENT ON COLUMN eskit_lease.top.losses IS 'How often it was lost within the last hour, or the slot that was lost most often; see the view flapping.';
COMMENT ON COLUMN eskit_lease.top.lag IS 'Positions that a group has still to do, where heads are reported.';
REVOKE ALL ON TABLE eskit_lease.history, eskit_lease.flapping, eskit_lease.top FROM PUBLIC;

REVOKE ALL ON TYPE
    eskit_lease.opened_session,
    eskit_lease.session_state,
    eskit_lease.sweep_result,
    eskit_lease.lease_answer,
    eskit_lease.lease_state,
    eskit_lease.execution_answer,
    eskit_lease._session_standing
FROM PUBLIC;

CREATE OR REPLACE VIEW eskit_lease.semaphores AS
SELECT d.resource AS name,
       d.slots AS permits,
       h.held,
       (SELECT count(*) FROM eskit_lease._waiters AS w WHERE w.resource = d.resource) AS waiters,
       d.owner
FROM eskit_lease._declarations AS d
CROSS JOIN LATERAL (
    SELECT count(*) AS held
    FROM eskit_lease._leases AS l
    JOIN eskit_lease._sessions AS s ON s.session = l.session
    CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
    WHERE l.resource = d.resource AND t.state <> 'expired') AS h
WHERE d.kind = 'semaphore';

CREATE OR REPLACE VIEW eskit_lease.blockers AS -- lock classes as in src/guard.rs
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
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid;

CREATE OR REPLACE VIEW eskit_lease.queues AS
SELECT q.queue,
       q.ordering,
       q.max_attempts,
       make_interval(secs => q.backoff_ms / 1000.0) AS retry_backoff,
       q.group_name,
       c.claims,
       (SELECT count(*) FROM (SELECT FROM eskit_lease._items AS i WHERE i.queue = q.number LIMIT 10001) AS i) AS items,
       (SELECT count(*) FROM (SELECT FROM eskit_lease._later AS l WHERE l.queue = q.number LIMIT 10001) AS l) AS later,
       (SELECT count(*) FROM (SELECT FROM eskit_lease._dead_items AS d WHERE d.queue = q.number LIMIT 10001) AS d) AS dead,
       q.owner,
       -- One look for each partition: that of all items would take as long as there are many.
       (SELECT min(f.added_at)
        FROM generate_series(0, coalesce((SELECT d.slots FROM eskit_lease._declarations AS d WHERE d.resource = q.group_name), 1) - 1) AS p (partition)
        CROSS JOIN LATERAL (
            SELECT i.added_at
            FROM eskit_lease._items AS i
            WHERE i.queue = q.number AND i.partition = p.partition AND i.claim = 0
            ORDER BY i.place
            LIMIT 1) AS f) AS ready_since
FROM eskit_lease._queues AS q
CROSS JOIN LATERAL (
    SELECT count(*) AS claims
    FROM eskit_lease._claims AS c
    JOIN eskit_lease._sessions AS s ON s.session = c.session
    WHERE c.queue = q.number) AS c;

CREATE OR REPLACE VIEW eskit_lease.fenced_tables AS -- what fence_table() makes is its triggers, and no row
SELECT t.tgrelid::regclass AS table_name,
       convert_from(substring(a.args FOR position(decode('00', 'hex') IN a.args || decode('00', 'hex')) - 1), getdatabaseencoding()) AS resource,
       CASE WHEN t.tgnargs > 1 THEN convert_from(substring(a.args FROM position(decode('00', 'hex') IN a.args) + 1), getdatabaseencoding())
       END AS partition_column,
       CASE t.tgtype & 1 WHEN 1 THEN 'row' ELSE 'statement' END AS checks_each,
       -- ROW, BEFORE, INSERT, DELETE, UPDATE, TRUNCATE and INSTEAD are the bits 1, 2, 4, 8, 16, 32 and 64 of tgtype.
       a.args IS NOT NULL AND NOT EXISTS (
           -- As an array, of which ten elements are expected: a thousand partitions would seem to be worth a JIT compilation.
           SELECT FROM unnest(t.tgrelid || ARRAY(SELECT p.relid::oid FROM pg_partition_tree(t.tgrelid) AS p)) AS r (relid)
           JOIN pg_class AS c ON c.oid = r.relid
           -- No statement trigger of a partition fires for what is written by way of another table; nor any in inheritance.
           WHERE (SELECT coalesce(bit_or(x.tgtype & CASE WHEN (c.relispartition OR c.relkind = 'p') AND x.tgtype & 1 = 0 THEN 32 ELSE 60 END), 0)
                  FROM pg_trigger AS x
                  WHERE x.tgrelid = r.relid AND x.tgfoid = t.tgfoid AND x.tgargs = t.tgargs AND x.tgenabled = 'A' AND x.tgtype & 66 = 0
                    AND x.tgqual IS NULL AND x.tgattr::text = '' AND x.tgconstraint = 0
                    -- By a column, statements are checked by what they have written.
                    AND (x.tgnargs = 1 OR x.tgtype & 33 <> 0
                         OR (x.tgtype & 20 = 0 OR x.tgnewtable IS NOT NULL) AND (x.tgtype & 24 = 0 OR x.tgoldtable IS NOT NULL))) <> 60
              OR NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid)
              OR c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid)) AS complete
FROM pg_namespace AS n
JOIN pg_proc AS f ON f.pronamespace = n.oid AND f.proname = 'require_fence'
CROSS JOIN (
    SELECT '{eskit_lease_fence,eskit_lease_fence_update,eskit_lease_fence_delete,eskit_lease_fence_truncate}'::name[] AS names) AS ours
-- By name, so that what has been put in its place is seen; by the first that there is.
JOIN pg_trigger AS t ON t.tgparentid = 0 AND t.tgname = ANY (ours.names)
    AND NOT EXISTS (SELECT FROM pg_trigger AS w WHERE w.tgrelid = t.tgrelid AND w.tgname = ANY (ours.names) AND w.tgname < t.tgname)
CROSS JOIN LATERAL rtrim(CASE WHEN t.tgfoid = f.oid AND t.tgnargs BETWEEN 1 AND 2 THEN t.tgargs END, decode('00', 'hex')) AS a (args)
WHERE n.nspname = 'eskit_lease';

CREATE OR REPLACE VIEW eskit_lease.items AS
SELECT q.queue,
       i.id,
       i.partition,
       CASE WHEN c.fence IS NULL THEN 'ready' WHEN coalesce(t.state, 'expired') = 'expired' THEN 'expired' ELSE 'claimed' END AS state,
       i.key,
       i.payload,
       i.attempt,
       i.error,
       i.added_at,
       NULL::timestamptz AS run_at,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN c.session END AS session,
       c.fence,
       c.claimed_at
FROM pg_extension AS e
CROSS JOIN eskit_lease._queues AS q
JOIN eskit_lease._items AS i ON i.queue = q.number
LEFT JOIN eskit_lease._claims AS c ON c.fence = i.claim
LEFT JOIN eskit_lease._sessions AS s ON s.session = c.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
WHERE e.extname = 'eskit_lease'
UNION ALL
SELECT q.queue, l.id, l.partition, 'later', l.key, l.payload, l.attempt, l.error, l.added_at,
       -- By hours, each of which is exact: seconds as a double would round the last time that there is to one that there is not.
       '2000-01-01 00:00:00+00'::timestamptz + l.due / 3600000000 * interval '1 hour' + l.due % 3600000000 * interval '1 microsecond',
       NULL, NULL, NULL, NULL
FROM eskit_lease._queues AS q
JOIN eskit_lease._later AS l ON l.queue = q.number;

COMMENT ON FUNCTION eskit_lease.lock_acquire(text, text, interval, uuid) IS
'Asks for a lease without a session of one''s own, as ShedLock does: a private session of the owner lives for ttl and ends with the lease. Renew and release by name and fence. Asked again with the same role, owner and request: the same fence, renewed for the ttl that was given first. Reasons as for lease_acquire.';
COMMENT ON FUNCTION eskit_lease.session_heartbeat(uuid) IS
'Keeps the session, and with it every lease that it holds, for another TTL. Writes no row and no WAL. Reasons: alive, unconfirmed (trust_ms is 0 until synchronous standbys have confirmed that this is the primary, see eskit_lease.confirm_interval), closing (its end is being committed), expired (for good, unless the server is restarted before anybody takes anything from it), unknown_session. Raises 42501 for another role''s session.';
COMMENT ON FUNCTION eskit_lease.session_wait(uuid, bigint, interval) IS
'A heartbeat that answers once the revision of the session is greater than the one given, at the timeout (default and limit eskit_lease.max_wait), or in time for the next heartbeat. Reasons: changed, timeout, heartbeat, unconfirmed (as for session_heartbeat), wait_limit (too many waiting calls, answered at once), closing, expired, unknown_session.';
COMMENT ON FUNCTION eskit_lease.session_sweep(integer) IS
'One bounded pass of what the background worker does: hands over, and takes away the rows of sessions that have ended, up to max_leases leases (1 to 100000). Returns sessions ended, leases handed over, and whether there is more to do. After it work items are found that were not added but copied in, and fences and ids rise above all given before, also where a restore of data alone has set them back. For administrators.';
COMMENT ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean) IS
'Asks for the lease of a resource (1 to 255 bytes), or for any free permit of a semaphore (slot tells which), without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence, also out of grace), refenced (new fence after a promotion); held (holder says by whom; NULL for a semaphore), busy (somebody is in the middle of it), awaited (others are in line), bridged (free, but a bridge: given to who is in line), queued, draining, closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held; with eskit_lease.confirm_interval 0 for what this transaction grants: ask session_heartbeat after its commit. Raises 42501, 22004, 22023, 42809 (a group), 53400 (too many places in queues).';
COMMENT ON FUNCTION eskit_lease.lease_renew(text, bigint) IS
'Whether the lease is still held under this fence; counts as a heartbeat of its session. Reasons: held, refence (held, but acquire again for a fence of the new timeline), unconfirmed (held; as for session_heartbeat); expired, released, superseded (with by whom), unknown. Raises 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.semaphore_resize(text, integer) IS
'Changes the number of permits. One that shrinks takes effect as permits come back. Raises 42704, 42809 (a group), 42501 unless the caller made it, 55P03 (somebody is just changing it).';
COMMENT ON FUNCTION eskit_lease.semaphore_drop(text) IS
'Drops a semaphore that nobody holds or waits for. Raises 55006 otherwise, 42704, 42809, 42501, 55P03 (somebody is just changing it).';
COMMENT ON FUNCTION eskit_lease.group_alter(text, text, interval, interval) IS
'Changes settings of a group; NULL, the default, keeps one. Raises 42704, 42809, 42501 unless the caller made it, 22023, 55P03 (somebody is just changing it).';
COMMENT ON FUNCTION eskit_lease.group_resize(text, integer, boolean) IS
'Changes the number of partitions, and so which key belongs where. Raises 55006 while any partition is owned; with drain, all owners are asked to release theirs first, within the rebalance_timeout. Every cursor then begins at the least position that any had: nothing is skipped, some may be seen again. The present number calls a resize off that is being drained for. True once it is done, false while it is being drained. Raises 42704, 42809, 42501, 22023, 55P03 (somebody is just changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_drop(text) IS
'Drops a group without living members, and its cursors. Raises 55006 otherwise, 42704, 42809, 42501, 55P03 (somebody is just changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_join(text, uuid) IS
'Makes the session a member of the group, once; counts as its heartbeat. Partitions come by and by, as others release them: see group_assignment. Returns the generation. Raises 55000 for a session that has ended or drains, 42704, 42809, 42501, 55P03 (somebody is just changing or dropping the group).';
COMMENT ON FUNCTION eskit_lease.group_leave(text, uuid) IS
'Ends the membership, and releases the session''s partitions to those who are to have them. Waits for its own fenced transactions, under lock_timeout. False if it was no member. Raises 42704, 42809, 42501, 55P03 (lock_timeout ran out, or somebody is just changing the group).';
COMMENT ON FUNCTION eskit_lease.fence_check(text, bigint) IS
'Asserts that the lease is held under this fence, to the end of the transaction: nobody else gets it before. Call it in each transaction that writes, as a statement of its own before what is to be written is read: inside a function, the statement around that may have an older snapshot. Raises LF001 when the fence is no longer valid, 55P03 while the lease is changing hands, when a partition was to be released by now, or when the lock or the row of a bridge is not to be had, 40001 when it was granted after what this transaction reads, 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.grant_consumer(regrole) IS 'Lets a role open sessions, use leases, locks and fences, make and use semaphores and groups, move cursors, draw and read positions, run what is run once, make queues and work off their items, and fence tables of its own. For whoever may grant that.';
COMMENT ON COLUMN eskit_lease.waiters.holder IS 'Who holds the resource; NULL for a semaphore, which several hold, and for a bridge.';
COMMENT ON FUNCTION eskit_lease.grant_monitor(regrole) IS 'Lets a role read the views and stats(), report heads with cursor_head(), and call position_horizon(). For whoever may grant that.';
COMMENT ON FUNCTION eskit_lease.stats() IS 'Counters of this database since the server started (they grow), and the numbers of living sessions, of resources that wait for the worker, and of waiting session_wait calls. confirmed_ms_ago: how long ago the last acknowledged confirmation was begun (see eskit_lease.confirm_interval), NULL before the first.';
COMMENT ON FUNCTION eskit_lease.queue_alter(text, integer, interval) IS
'Changes settings of a queue; NULL, the default, keeps one. Raises 42704, 42501 unless the caller made it, 22023, 55P03 (somebody is just changing it).';
COMMENT ON FUNCTION eskit_lease.item_add(text, jsonb, text, timestamptz) IS
'Adds an item to a queue, with this transaction, and returns its id. payload: up to 1 MiB, and 16 MiB as text. key (1 to 255 bytes): decides the partition in a queue that is bound to a group, and what is given one at a time where the ordering is key. run_at: not to be claimed before. Raises 42704, 22004, 22023, 54000 (payload too large), 55P03 (the queue is just being dropped, or its group resized).';
COMMENT ON FUNCTION eskit_lease.item_claim(text, uuid, integer) IS
'Claims up to max_items (1 to 1000) items for the session, without ever waiting; counts as its heartbeat. A row for each, none if there is nothing; all under one fence, for item_done and its like. In a queue with an order at most one of each key, or partition. Whoever is given less is woken when there is more, or when an item is due. The claim lasts until they are finished, or the session ends. Raises 55000 for a session that has ended or drains, or is no member of the queue''s group, 42704, 42501, 22023, 22004.';
COMMENT ON COLUMN eskit_lease.sessions.trust_ms IS 'Milliseconds left without another heartbeat, as far as this server vouches for it.';
COMMENT ON COLUMN eskit_lease.leases.trust_ms IS 'Milliseconds that the holder''s session has left without another heartbeat, as far as this server vouches for it.';
COMMENT ON COLUMN eskit_lease.items.state IS 'ready (in a queue with an order perhaps behind another of its key), claimed, expired (its claimer has ended; about to be ready again), or later (claimed from its run_at on).';
COMMENT ON COLUMN eskit_lease.items.run_at IS 'When its time comes, or came, for one that is later.';
COMMENT ON COLUMN eskit_lease.fenced_tables.checks_each IS 'When it is checked: after each statement, or after each row.';
COMMENT ON COLUMN eskit_lease.session_state.reason IS 'Why: the words are in the comments of session_heartbeat() and session_wait().';
COMMENT ON COLUMN eskit_lease.lease_answer.reason IS 'Why: the words are in the comment of lease_acquire().';
COMMENT ON COLUMN eskit_lease.lease_state.reason IS 'Why: the words are in the comment of lease_renew().';
COMMENT ON COLUMN eskit_lease.queues.ready_since IS 'When the first of its items that are ready was added, of whichever partition; NULL if none is.';

-- What ALTER DEFAULT PRIVILEGES has given roles of what is made here is taken back: nobody writes these tables, and whoever reads them has the
-- handles of all sessions.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT 'TABLE' AS kind, c.oid::regclass::text AS name, a.grantee::regrole::text AS role
        FROM pg_class AS c
        CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relname IN ('_deaths', '_bridges', 'bridges', '_history', 'history', 'flapping', 'top') AND a.grantee NOT IN (0, c.relowner)
        UNION
        SELECT 'FUNCTION', p.oid::regprocedure::text, a.grantee::regrole::text
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.pronamespace = 'eskit_lease'::regnamespace AND p.proname IN ('_require_library', 'bridge_create', 'bridge_create_row', 'bridge_drop') AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', given.kind, given.name, given.role);
    END LOOP;
END
$$;
