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
       q.owner
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
'Asks for the lease of a resource (1 to 255 bytes), or for any free permit of a semaphore (slot tells which), without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence, also out of grace), refenced (new fence after a promotion); held (holder says by whom; NULL for a semaphore), busy (somebody is in the middle of it), awaited (others are in line), queued, draining, closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held; with eskit_lease.confirm_interval 0 for what this transaction grants: ask session_heartbeat after its commit. Raises 42501, 22004, 22023, 42809 (a group), 53400 (too many places in queues).';
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
