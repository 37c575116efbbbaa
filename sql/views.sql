-- Views that people and monitors read. The uuid of a session is the handle to use it, so only its role and
-- administrators see it.

CREATE VIEW eskit_lease.sessions AS
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

COMMENT ON VIEW eskit_lease.sessions IS 'Sessions with rows; shared memory tells their states.';
COMMENT ON COLUMN eskit_lease.sessions.session IS 'The handle; NULL unless the reader may use it or is an administrator.';
COMMENT ON COLUMN eskit_lease.sessions.consumer IS 'The name that the process chose.';
COMMENT ON COLUMN eskit_lease.sessions.role IS 'The role that opened it.';
COMMENT ON COLUMN eskit_lease.sessions.state IS 'alive, draining, closing (its end is committing), expired (not swept yet), or unknown (on a standby).';
COMMENT ON COLUMN eskit_lease.sessions.ttl_ms IS 'Time to live after a heartbeat, in milliseconds.';
COMMENT ON COLUMN eskit_lease.sessions.trust_ms IS 'Milliseconds left without another heartbeat, as far as this server vouches.';
COMMENT ON COLUMN eskit_lease.sessions.expires_at IS 'The deadline as a time, for people; NULL if expired.';
COMMENT ON COLUMN eskit_lease.sessions.revision IS 'Grows with each lease granted to it or taken from it; NULL after a restart until its first call.';
COMMENT ON COLUMN eskit_lease.sessions.attached_pid IS 'Process id of the connection that it is attached to, if any.';
COMMENT ON COLUMN eskit_lease.sessions.private IS 'Whether lock_acquire or a release with grace made it; it ends with its lease.';
COMMENT ON COLUMN eskit_lease.sessions.opened_at IS 'When it was opened.';
COMMENT ON COLUMN eskit_lease.sessions.leases IS 'Leases that it holds.';
COMMENT ON COLUMN eskit_lease.sessions.waiting_for IS 'Its places in line.';
COMMENT ON COLUMN eskit_lease.sessions.address IS 'Address of the client that opened it (a pooler''s, behind one); NULL for a Unix socket.';
COMMENT ON COLUMN eskit_lease.sessions.application_name IS 'Its application_name then.';
COMMENT ON COLUMN eskit_lease.sessions.login IS 'The user that it was logged in as.';

CREATE VIEW eskit_lease.leases AS
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

COMMENT ON VIEW eskit_lease.leases IS 'Leases with holder, fence and time left; released ones for eskit_lease.row_retention.';
COMMENT ON COLUMN eskit_lease.leases.resource IS 'The name that sessions compete for.';
COMMENT ON COLUMN eskit_lease.leases.slot IS 'Permit of a semaphore or partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.leases.state IS 'held, free (released), or expired (its session has ended; free for the next acquire).';
COMMENT ON COLUMN eskit_lease.leases.consumer IS 'The holder.';
COMMENT ON COLUMN eskit_lease.leases.session IS 'The holder''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.leases.role IS 'The role of the holder.';
COMMENT ON COLUMN eskit_lease.leases.fence IS 'The fencing token; the last one if free.';
COMMENT ON COLUMN eskit_lease.leases.granted_at IS 'When the fence was granted.';
COMMENT ON COLUMN eskit_lease.leases.released_at IS 'When it was released, if so.';
COMMENT ON COLUMN eskit_lease.leases.held_for IS 'From the grant to the release, or to now.';
COMMENT ON COLUMN eskit_lease.leases.trust_ms IS 'Milliseconds left to the holder''s session without another heartbeat, as far as this server vouches.';
COMMENT ON COLUMN eskit_lease.leases.expires_at IS 'The deadline as a time, for people.';
COMMENT ON COLUMN eskit_lease.leases.waiters IS 'Places in line.';
COMMENT ON COLUMN eskit_lease.leases.address IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.leases.ended_at IS 'When it was released, or its holder''s session expired; NULL if held.';
COMMENT ON COLUMN eskit_lease.leases.application_name IS 'As in the view sessions.';

CREATE VIEW eskit_lease.waiters AS
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

COMMENT ON VIEW eskit_lease.waiters IS 'Waiters, in the order of their turns.';
COMMENT ON COLUMN eskit_lease.waiters.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.waiters.position IS 'Place in line, from 1; places whose state is not alive are skipped.';
COMMENT ON COLUMN eskit_lease.waiters.consumer IS 'The waiter.';
COMMENT ON COLUMN eskit_lease.waiters.session IS 'The waiter''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.state IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.queued_at IS 'Start of the wait.';
COMMENT ON COLUMN eskit_lease.waiters.waiting_for IS 'Length of the wait.';
COMMENT ON COLUMN eskit_lease.waiters.holder IS 'The present holder; NULL for a semaphore, which several hold, and for a bridge.';
COMMENT ON COLUMN eskit_lease.waiters.address IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.application_name IS 'As in the view sessions.';

CREATE VIEW eskit_lease.refusals AS
SELECT r.resource, r.consumer, r.reason, r.holder, r.refused_at
FROM eskit_lease._refusals() AS r;

COMMENT ON VIEW eskit_lease.refusals IS 'The last refusal of each resource to each consumer, for a minute: up to 512, up to 64 of one call.';
COMMENT ON COLUMN eskit_lease.refusals.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.refusals.consumer IS 'The asker.';
COMMENT ON COLUMN eskit_lease.refusals.reason IS 'As lease_acquire answers; queued ones are in the view waiters.';
COMMENT ON COLUMN eskit_lease.refusals.holder IS 'The holder then, if any.';
COMMENT ON COLUMN eskit_lease.refusals.refused_at IS 'Time of the refusal.';

CREATE VIEW eskit_lease.semaphores AS
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

COMMENT ON VIEW eskit_lease.semaphores IS 'Semaphores; the view leases has the holders of their permits.';
COMMENT ON COLUMN eskit_lease.semaphores.name IS 'The name, for lease_acquire.';
COMMENT ON COLUMN eskit_lease.semaphores.permits IS 'How many sessions may hold it at once.';
COMMENT ON COLUMN eskit_lease.semaphores.held IS 'How many hold it; may exceed permits after a resize to fewer.';
COMMENT ON COLUMN eskit_lease.semaphores.waiters IS 'Places in line.';
COMMENT ON COLUMN eskit_lease.semaphores.owner IS 'The role that made it, and may resize and drop it.';

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

CREATE VIEW eskit_lease.bridges AS -- lock class as in src/pg/guard.rs
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

COMMENT ON VIEW eskit_lease.bridges IS 'Bridges to advisory locks and to rows; the views leases and waiters have their holders and waiters.';
COMMENT ON COLUMN eskit_lease.bridges.resource IS 'The name, for lease_acquire.';
COMMENT ON COLUMN eskit_lease.bridges.lock_key IS 'The key for pg_advisory_lock; NULL for a row.';
COMMENT ON COLUMN eskit_lease.bridges.target IS 'The table of the row.';
COMMENT ON COLUMN eskit_lease.bridges.key IS 'The row''s primary key.';
COMMENT ON COLUMN eskit_lease.bridges.owner_column IS 'The column that names the owner.';
COMMENT ON COLUMN eskit_lease.bridges.until_column IS 'The column with the end of the owner''s time.';
COMMENT ON COLUMN eskit_lease.bridges.held IS 'Whether the worker has the lock, without which checks fail; or the row, which each check reads itself.';
COMMENT ON COLUMN eskit_lease.bridges.blocked_by IS 'Processes with the exclusive lock, then those that wait for it; 0 for a prepared transaction. NULL for a row, which names its owner.';
COMMENT ON COLUMN eskit_lease.bridges.trouble IS 'Why the worker could not take the row at its last try, so no session gets the lease now; NULL if all is well, even while an old worker owns the row.';
COMMENT ON COLUMN eskit_lease.bridges.owner IS 'The role that made it, and may drop it.';

CREATE VIEW eskit_lease.groups AS
SELECT g.group_name,
       d.slots AS partitions,
       g.assignor,
       make_interval(secs => g.rebalance_timeout_ms / 1000.0) AS rebalance_timeout,
       make_interval(secs => g.settle_delay_ms / 1000.0) AS settle_delay,
       g.generation,
       (SELECT count(*)
        FROM eskit_lease._members AS m
        JOIN eskit_lease._sessions AS s ON s.session = m.session
        CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
        WHERE m.group_name = g.group_name AND t.state <> 'expired') AS members,
       g.resize_to,
       d.owner
FROM eskit_lease._groups AS g
JOIN eskit_lease._declarations AS d ON d.resource = g.group_name;

COMMENT ON VIEW eskit_lease.groups IS 'Consumer groups.';
COMMENT ON COLUMN eskit_lease.groups.group_name IS 'The name, also a resource.';
COMMENT ON COLUMN eskit_lease.groups.partitions IS 'Number of partitions, from 0.';
COMMENT ON COLUMN eskit_lease.groups.assignor IS 'sticky or range; see partition_assign().';
COMMENT ON COLUMN eskit_lease.groups.rebalance_timeout IS 'How long an owner may take to release a partition that moves.';
COMMENT ON COLUMN eskit_lease.groups.settle_delay IS 'How long newcomers are gathered for one rebalance.';
COMMENT ON COLUMN eskit_lease.groups.generation IS 'Grows with each change of the assignment.';
COMMENT ON COLUMN eskit_lease.groups.members IS 'Living members.';
COMMENT ON COLUMN eskit_lease.groups.resize_to IS 'Number of partitions after all owners have released theirs; NULL unless it is being resized.';
COMMENT ON COLUMN eskit_lease.groups.owner IS 'The role that made it, and may alter, resize and drop it.';

CREATE VIEW eskit_lease.group_members AS
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

COMMENT ON VIEW eskit_lease.group_members IS 'Members of groups.';
COMMENT ON COLUMN eskit_lease.group_members.group_name IS 'The group.';
COMMENT ON COLUMN eskit_lease.group_members.consumer IS 'The member.';
COMMENT ON COLUMN eskit_lease.group_members.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_members.role IS 'The role of its session.';
COMMENT ON COLUMN eskit_lease.group_members.state IS 'As in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_members.joined_at IS 'When it joined; a successor by take-over has its predecessor''s time.';
COMMENT ON COLUMN eskit_lease.group_members.partitions IS 'Partitions that it owns.';
COMMENT ON COLUMN eskit_lease.group_members.targets IS 'Partitions assigned to it.';

CREATE VIEW eskit_lease.group_partitions AS
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

COMMENT ON VIEW eskit_lease.group_partitions IS 'Partitions, with present and next owners.';
COMMENT ON COLUMN eskit_lease.group_partitions.group_name IS 'The group.';
COMMENT ON COLUMN eskit_lease.group_partitions.partition IS 'The partition, from 0.';
COMMENT ON COLUMN eskit_lease.group_partitions.state IS 'free, owned, revoking (the owner must release it), or expired (its owner has ended; about to move).';
COMMENT ON COLUMN eskit_lease.group_partitions.owner IS 'The consumer that owns it.';
COMMENT ON COLUMN eskit_lease.group_partitions.session IS 'The owner''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.group_partitions.fence IS 'The fencing token; the last one if free.';
COMMENT ON COLUMN eskit_lease.group_partitions.granted_at IS 'When the fence was granted.';
COMMENT ON COLUMN eskit_lease.group_partitions.target IS 'The consumer that it is assigned to.';
COMMENT ON COLUMN eskit_lease.group_partitions.revoke_in IS 'Time left to release it; NULL if there is no limit. A draining owner has one only while the group is resized.';

CREATE VIEW eskit_lease.group_lag AS
SELECT g.group_name,
       n.partition,
       coalesce(c.position, 0) AS position,
       h.position AS head,
       h.position - least(h.position, coalesce(c.position, 0)) AS lag,
       coalesce(c.acked_ahead, 0) AS acked_ahead,
       c.fence,
       c.committed_at,
       h.reported_at
FROM eskit_lease._groups AS g
JOIN eskit_lease._declarations AS d ON d.resource = g.group_name
CROSS JOIN LATERAL generate_series(0, d.slots - 1) AS n (partition)
-- Sums before the join: after it the planner would expect so many rows that it would JIT-compile.
LEFT JOIN (SELECT c.*, (SELECT sum(upper(r.range) - lower(r.range)) FROM unnest(c.acked) AS r (range))::bigint AS acked_ahead
           FROM eskit_lease._cursors AS c) AS c ON c.group_name = g.group_name AND c.partition = n.partition
LEFT JOIN eskit_lease._heads AS h ON h.group_name = g.group_name AND h.partition = n.partition AND h.partitions = d.slots;

COMMENT ON VIEW eskit_lease.group_lag IS 'Progress and lag of each group in each partition.';
COMMENT ON COLUMN eskit_lease.group_lag.group_name IS 'The group.';
COMMENT ON COLUMN eskit_lease.group_lag.partition IS 'The partition, from 0.';
COMMENT ON COLUMN eskit_lease.group_lag.position IS 'The cursor: all positions up to it are done.';
COMMENT ON COLUMN eskit_lease.group_lag.head IS 'The newest position reported by cursor_report_head(); NULL without a report.';
COMMENT ON COLUMN eskit_lease.group_lag.lag IS 'Positions from cursor to head; NULL without a report.';
COMMENT ON COLUMN eskit_lease.group_lag.acked_ahead IS 'Acknowledged positions beyond the cursor.';
COMMENT ON COLUMN eskit_lease.group_lag.fence IS 'The fence of the cursor''s last commit.';
COMMENT ON COLUMN eskit_lease.group_lag.committed_at IS 'The time of that commit.';
COMMENT ON COLUMN eskit_lease.group_lag.reported_at IS 'When the head was last reported.';

CREATE VIEW eskit_lease.executions AS
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

COMMENT ON VIEW eskit_lease.executions IS 'Run-once keys; done and resolved ones for eskit_lease.execution_retention.';
COMMENT ON COLUMN eskit_lease.executions.key IS 'The key.';
COMMENT ON COLUMN eskit_lease.executions.state IS 'running, done, failed, in_doubt (its session ended first), or retry (free for another attempt).';
COMMENT ON COLUMN eskit_lease.executions.consumer IS 'The consumer of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.session IS 'Its session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.executions.role IS 'The role of its session, by its name then.';
COMMENT ON COLUMN eskit_lease.executions.fence IS 'The fence of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.attempts IS 'Attempts so far.';
COMMENT ON COLUMN eskit_lease.executions.started_at IS 'Start of the last attempt.';
COMMENT ON COLUMN eskit_lease.executions.finished_at IS 'When it was finished, failed or resolved.';
COMMENT ON COLUMN eskit_lease.executions.result IS 'The result, if done.';
COMMENT ON COLUMN eskit_lease.executions.error IS 'Why it failed.';
COMMENT ON COLUMN eskit_lease.executions.retry_in_doubt IS 'Whether another attempt may begin without a decision when it is in doubt.';
COMMENT ON COLUMN eskit_lease.executions.resolved_by IS 'The role that resolved it, if any.';
COMMENT ON COLUMN eskit_lease.executions.resolved_at IS 'When it was resolved.';

CREATE VIEW eskit_lease.fenced_tables AS -- table_fence() makes triggers only, and no row
SELECT t.tgrelid::regclass AS table_name,
       convert_from(substring(a.args FOR position(decode('00', 'hex') IN a.args || decode('00', 'hex')) - 1), getdatabaseencoding()) AS resource,
       CASE WHEN t.tgnargs > 1 THEN convert_from(substring(a.args FROM position(decode('00', 'hex') IN a.args) + 1), getdatabaseencoding())
       END AS partition_column,
       CASE t.tgtype & 1 WHEN 1 THEN 'row' ELSE 'statement' END AS checks_each,
       -- ROW, BEFORE, INSERT, DELETE, UPDATE, TRUNCATE and INSTEAD are the bits 1, 2, 4, 8, 16, 32 and 64 of tgtype.
       a.args IS NOT NULL AND NOT EXISTS (
           -- An array, for which the planner expects ten elements. For a thousand partitions it would JIT-compile.
           SELECT FROM unnest(t.tgrelid || ARRAY(SELECT p.relid::oid FROM pg_partition_tree(t.tgrelid) AS p)) AS r (relid)
           JOIN pg_class AS c ON c.oid = r.relid
           -- A statement that names another table fires no statement trigger of this partition or child.
           WHERE (SELECT coalesce(bit_or(x.tgtype & CASE WHEN (c.relispartition OR c.relkind = 'p') AND x.tgtype & 1 = 0 THEN 32 ELSE 60 END), 0)
                  FROM pg_trigger AS x
                  WHERE x.tgrelid = r.relid AND x.tgfoid = t.tgfoid AND x.tgargs = t.tgargs AND x.tgenabled = 'A' AND x.tgtype & 66 = 0
                    AND x.tgqual IS NULL AND x.tgattr::text = '' AND x.tgconstraint = 0
                    -- In a table fenced by a column, a statement trigger needs transition tables to check the written
                    -- rows.
                    AND (x.tgnargs = 1 OR x.tgtype & 33 <> 0
                         OR (x.tgtype & 20 = 0 OR x.tgnewtable IS NOT NULL) AND (x.tgtype & 24 = 0 OR x.tgoldtable IS NOT NULL))) <> 60
              OR NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid)
              OR c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid)) AS complete
FROM pg_namespace AS n
JOIN pg_proc AS f ON f.pronamespace = n.oid AND f.proname = 'require_fence'
CROSS JOIN (
    SELECT '{eskit_lease_fence,eskit_lease_fence_update,eskit_lease_fence_delete,eskit_lease_fence_truncate}'::name[] AS names) AS ours
-- Finds our triggers by name, so that a user's trigger of that name is seen too; takes the first one.
JOIN pg_trigger AS t ON t.tgparentid = 0 AND t.tgname = ANY (ours.names)
    AND NOT EXISTS (SELECT FROM pg_trigger AS w WHERE w.tgrelid = t.tgrelid AND w.tgname = ANY (ours.names) AND w.tgname < t.tgname)
CROSS JOIN LATERAL rtrim(CASE WHEN t.tgfoid = f.oid AND t.tgnargs BETWEEN 1 AND 2 THEN t.tgargs END, decode('00', 'hex')) AS a (args)
WHERE n.nspname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.fenced_tables IS 'Tables that are written only under a fence.';
COMMENT ON COLUMN eskit_lease.fenced_tables.table_name IS 'The table.';
COMMENT ON COLUMN eskit_lease.fenced_tables.resource IS 'The resource that writers must hold; NULL if another trigger has replaced the one that checks it.';
COMMENT ON COLUMN eskit_lease.fenced_tables.partition_column IS 'The column with each row''s partition, if the table is fenced by a column.';
COMMENT ON COLUMN eskit_lease.fenced_tables.checks_each IS 'Whether it is checked after each statement or each row.';
COMMENT ON COLUMN eskit_lease.fenced_tables.complete IS 'False if table_fence() must be called again: a trigger was disabled, dropped or replaced, the table was attached to another, or has a partition without a fence for TRUNCATE. False too in inheritance: no fence is complete there.';

CREATE VIEW eskit_lease.blockers AS -- lock classes as in src/pg/guard.rs
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

COMMENT ON VIEW eskit_lease.blockers IS 'Open transactions that keep leases from changing hands, or keep a group, a semaphore, a bridge or a session as it is. A row names the connection or the prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.doing IS 'fenced, fenced by the session, releasing, granting to the session, ending the session; changing: the transaction has the lease''s row to acquire it, release it (also with grace), or take it back; changing the group, the semaphore, the bridge, or the session (to drain or to end it).';
COMMENT ON COLUMN eskit_lease.blockers.resource IS 'The resource, if any.';
COMMENT ON COLUMN eskit_lease.blockers.consumer IS 'The session concerned.';
COMMENT ON COLUMN eskit_lease.blockers.granted IS 'False while the transaction itself waits.';
COMMENT ON COLUMN eskit_lease.blockers.pid IS 'Process id of the connection; NULL for a prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.prepared IS 'Identifier of the prepared transaction, for COMMIT PREPARED or ROLLBACK PREPARED.';
COMMENT ON COLUMN eskit_lease.blockers.since IS 'When the transaction began or was prepared; NULL for another role''s connection unless the reader is a member of pg_read_all_stats.';

CREATE VIEW eskit_lease.queues AS
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
COMMENT ON COLUMN eskit_lease.queues.owner IS 'The role that made it, and may alter and drop it and requeue its dead items.';
COMMENT ON COLUMN eskit_lease.queues.ready_since IS 'When its first ready item, of any partition, was added; NULL without one.';
COMMENT ON COLUMN eskit_lease.queues.counted_at IS 'When the counts were right: now, or for an estimate the last ANALYZE; NULL before the first.';

CREATE VIEW eskit_lease.items AS
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
       -- Adds hours, which are exact. Seconds as a double would round the last possible time up, out of range.
       '2000-01-01 00:00:00+00'::timestamptz + l.due / 3600000000 * interval '1 hour' + l.due % 3600000000 * interval '1 microsecond',
       NULL, NULL, NULL, NULL
FROM eskit_lease._queues AS q
JOIN eskit_lease._later AS l ON l.queue = q.number;

COMMENT ON VIEW eskit_lease.items IS 'Unfinished work items. Read it with a condition on queue: there may be millions.';
COMMENT ON COLUMN eskit_lease.items.queue IS 'The queue.';
COMMENT ON COLUMN eskit_lease.items.id IS 'The item''s permanent id.';
COMMENT ON COLUMN eskit_lease.items.partition IS 'Partition of the queue''s group; 0 without one.';
COMMENT ON COLUMN eskit_lease.items.state IS 'ready (with an ordering, perhaps behind another), claimed, expired (its claimer has ended; about to be ready), or later (not claimed before its run_at).';
COMMENT ON COLUMN eskit_lease.items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.items.attempt IS 'How often it was claimed.';
COMMENT ON COLUMN eskit_lease.items.error IS 'Its last error.';
COMMENT ON COLUMN eskit_lease.items.added_at IS 'When it was added, or requeued.';
COMMENT ON COLUMN eskit_lease.items.run_at IS 'When an item of state later was or will be due.';
COMMENT ON COLUMN eskit_lease.items.consumer IS 'The claimer.';
COMMENT ON COLUMN eskit_lease.items.session IS 'The claimer''s session; NULL as in the view sessions.';
COMMENT ON COLUMN eskit_lease.items.fence IS 'The fence of its claim.';
COMMENT ON COLUMN eskit_lease.items.claimed_at IS 'When it was claimed.';

CREATE VIEW eskit_lease.dead_items AS
SELECT q.queue, d.id, d.key, d.payload, d.attempt, d.error, d.added_at, d.died_at
FROM eskit_lease._queues AS q
JOIN eskit_lease._dead_items AS d ON d.queue = q.number;

COMMENT ON VIEW eskit_lease.dead_items IS 'Dead letters: items that failed as often as their queue allows, for eskit_lease.dead_item_retention. item_requeue() retries them.';
COMMENT ON COLUMN eskit_lease.dead_items.queue IS 'The queue.';
COMMENT ON COLUMN eskit_lease.dead_items.id IS 'The item.';
COMMENT ON COLUMN eskit_lease.dead_items.key IS 'Its key.';
COMMENT ON COLUMN eskit_lease.dead_items.payload IS 'Its payload.';
COMMENT ON COLUMN eskit_lease.dead_items.attempt IS 'How often it was claimed.';
COMMENT ON COLUMN eskit_lease.dead_items.error IS 'Its last error; session ended means that its claimer ended first.';
COMMENT ON COLUMN eskit_lease.dead_items.added_at IS 'When it was added.';
COMMENT ON COLUMN eskit_lease.dead_items.died_at IS 'When it failed the last time.';

CREATE VIEW eskit_lease.position_blockers AS
SELECT a.pid,
       NULL::text AS prepared,
       a.datname AS database,
       a.usename AS role,
       a.xact_start AS since,
       age(a.backend_xid) AS behind
FROM pg_stat_activity AS a
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
UNION ALL
SELECT NULL, p.gid, p.database, p.owner, p.prepared, age(p.transaction)
FROM pg_prepared_xacts AS p;

COMMENT ON VIEW eskit_lease.position_blockers IS 'Open transactions that have written, in any database, prepared ones included, except the reader''s own: position_horizon() lags behind the oldest.';
COMMENT ON COLUMN eskit_lease.position_blockers.pid IS 'Process id of the connection; NULL for a prepared transaction.';
COMMENT ON COLUMN eskit_lease.position_blockers.prepared IS 'Identifier of the prepared transaction, for COMMIT PREPARED or ROLLBACK PREPARED.';
COMMENT ON COLUMN eskit_lease.position_blockers.database IS 'The database that it writes.';
COMMENT ON COLUMN eskit_lease.position_blockers.role IS 'Its role.';
COMMENT ON COLUMN eskit_lease.position_blockers.since IS 'When it began or was prepared; NULL for another role''s connection unless the reader is a member of pg_read_all_stats.';
COMMENT ON COLUMN eskit_lease.position_blockers.behind IS 'Transaction ids given since; the oldest transaction holds the horizon back.';
