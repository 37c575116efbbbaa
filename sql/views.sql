-- What people and monitors read. The uuid of a session is the handle to use it, so only its role and administrators see it.

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
       (SELECT count(*) FROM eskit_lease._waiters AS w WHERE w.session = s.session) AS waiting_for
FROM pg_extension AS e
CROSS JOIN eskit_lease._sessions AS s
CROSS JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t
WHERE e.extname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.sessions IS 'Sessions with rows, each with its state by shared memory.';
COMMENT ON COLUMN eskit_lease.sessions.session IS 'The handle; NULL unless the reader may use the session or is an administrator.';
COMMENT ON COLUMN eskit_lease.sessions.consumer IS 'The name that the process gave itself.';
COMMENT ON COLUMN eskit_lease.sessions.role IS 'The role that opened it.';
COMMENT ON COLUMN eskit_lease.sessions.state IS 'alive, draining, closing (its end is being committed) or expired (not swept yet).';
COMMENT ON COLUMN eskit_lease.sessions.ttl_ms IS 'Time to live between heartbeats, in milliseconds.';
COMMENT ON COLUMN eskit_lease.sessions.trust_ms IS 'Milliseconds left without another heartbeat.';
COMMENT ON COLUMN eskit_lease.sessions.expires_at IS 'The same as a time, for people; NULL for an expired session.';
COMMENT ON COLUMN eskit_lease.sessions.revision IS 'Grows whenever a lease is granted to it or taken from it; NULL until the session is heard of after a restart.';
COMMENT ON COLUMN eskit_lease.sessions.attached_pid IS 'Process id of the connection that it ends with, if any.';
COMMENT ON COLUMN eskit_lease.sessions.private IS 'Whether it was made by lock_acquire, and ends with its lease.';
COMMENT ON COLUMN eskit_lease.sessions.opened_at IS 'When it was opened.';
COMMENT ON COLUMN eskit_lease.sessions.leases IS 'Number of leases that it holds.';
COMMENT ON COLUMN eskit_lease.sessions.waiting_for IS 'Number of its places in queues.';

CREATE VIEW eskit_lease.leases AS
SELECT l.resource,
       l.slot,
       CASE WHEN l.session IS NULL THEN 'free' WHEN t.state IN ('alive', 'closing') THEN 'held' ELSE 'expired' END AS state,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN l.session END AS session,
       pg_get_userbyid(s.role) AS role,
       l.fence,
       l.granted_at,
       l.released_at,
       coalesce(l.released_at, clock_timestamp()) - l.granted_at AS held_for,
       t.trust_ms,
       t.expires_at,
       (SELECT count(*) FROM eskit_lease._waiters AS w WHERE w.resource = l.resource) AS waiters
FROM pg_extension AS e
CROSS JOIN eskit_lease._leases AS l
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
WHERE e.extname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.leases IS 'Who holds what, under which fence, since when, for how much longer; released leases for eskit_lease.row_retention.';
COMMENT ON COLUMN eskit_lease.leases.resource IS 'The name that sessions compete for.';
COMMENT ON COLUMN eskit_lease.leases.slot IS 'Which of the resource''s slots; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.leases.state IS 'held, free (released), or expired (its session has ended; free for whoever asks).';
COMMENT ON COLUMN eskit_lease.leases.consumer IS 'The holder.';
COMMENT ON COLUMN eskit_lease.leases.session IS 'The holder''s session; NULL unless the reader may use it or is an administrator.';
COMMENT ON COLUMN eskit_lease.leases.role IS 'The role of the holder.';
COMMENT ON COLUMN eskit_lease.leases.fence IS 'The fencing token, or the last one if free.';
COMMENT ON COLUMN eskit_lease.leases.granted_at IS 'When the fence was granted.';
COMMENT ON COLUMN eskit_lease.leases.released_at IS 'When it was released, if it was.';
COMMENT ON COLUMN eskit_lease.leases.held_for IS 'From the grant to the release, or to now.';
COMMENT ON COLUMN eskit_lease.leases.trust_ms IS 'Milliseconds that the holder''s session has left without another heartbeat.';
COMMENT ON COLUMN eskit_lease.leases.expires_at IS 'The same as a time, for people.';
COMMENT ON COLUMN eskit_lease.leases.waiters IS 'Number of places in the queue.';

CREATE VIEW eskit_lease.waiters AS
SELECT w.resource,
       row_number() OVER (PARTITION BY w.resource ORDER BY w.place) AS position,
       s.consumer,
       CASE WHEN pg_has_role(s.role, 'USAGE') OR pg_has_role(e.extowner, 'USAGE') THEN w.session END AS session,
       coalesce(CASE WHEN s.draining AND t.state = 'alive' THEN 'draining' ELSE t.state END, 'expired') AS state,
       w.queued_at,
       clock_timestamp() - w.queued_at AS waiting_for,
       h.consumer AS holder
FROM pg_extension AS e
CROSS JOIN eskit_lease._waiters AS w
LEFT JOIN eskit_lease._sessions AS s ON s.session = w.session
LEFT JOIN LATERAL eskit_lease._standing(s.session, s.boot_id, s.ttl_ms) AS t ON true
LEFT JOIN eskit_lease._leases AS l ON l.resource = w.resource AND l.slot = 0
LEFT JOIN eskit_lease._sessions AS h ON h.session = l.session
WHERE e.extname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.waiters IS 'Who waits for what, in order.';
COMMENT ON COLUMN eskit_lease.waiters.resource IS 'The resource waited for.';
COMMENT ON COLUMN eskit_lease.waiters.position IS 'Place in the queue, from 1; places whose state is not alive are skipped.';
COMMENT ON COLUMN eskit_lease.waiters.consumer IS 'Who waits.';
COMMENT ON COLUMN eskit_lease.waiters.session IS 'Its session; NULL unless the reader may use it or is an administrator.';
COMMENT ON COLUMN eskit_lease.waiters.state IS 'State of its session, as in the view sessions.';
COMMENT ON COLUMN eskit_lease.waiters.queued_at IS 'Since when.';
COMMENT ON COLUMN eskit_lease.waiters.waiting_for IS 'How long already.';
COMMENT ON COLUMN eskit_lease.waiters.holder IS 'Who holds the resource.';

CREATE VIEW eskit_lease.blockers AS -- lock classes as in src/guard.rs
SELECT CASE k.objsubid
           WHEN 4501 THEN CASE k.mode WHEN 'ShareLock' THEN 'granting to the session' ELSE 'ending the session' END
           WHEN 4502 THEN CASE k.mode WHEN 'ShareLock' THEN 'fenced by the session' ELSE 'ending the session' END
           ELSE CASE k.mode WHEN 'ShareLock' THEN 'fenced' ELSE 'releasing' END
       END AS doing,
       l.resource,
       s.consumer,
       k.granted,
       k.pid,
       p.gid AS prepared,
       coalesce(p.prepared, a.xact_start) AS since
FROM (SELECT k.*, (k.classid::bigint << 32) | k.objid::bigint AS key
      FROM pg_locks AS k
      WHERE k.locktype = 'advisory' AND k.objsubid BETWEEN 4501 AND 4503
        AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS k
LEFT JOIN eskit_lease._leases AS l ON k.objsubid = 4503 AND l.fence = k.key
LEFT JOIN eskit_lease._sessions AS s
    ON CASE WHEN k.objsubid = 4503 THEN s.session = l.session
            ELSE ('x' || right(replace(s.session::text, '-', ''), 16))::bit(64)::bigint = k.key END
-- A prepared transaction has no process; it is known by the lock that it holds on its own id.
LEFT JOIN pg_locks AS x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
    AND x.virtualtransaction = k.virtualtransaction
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid;

COMMENT ON VIEW eskit_lease.blockers IS 'Open transactions that keep leases from changing hands, by connection or prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.doing IS 'What the transaction does: fenced, fenced by the session, releasing, granting to the session, ending the session.';
COMMENT ON COLUMN eskit_lease.blockers.resource IS 'The resource, where it is one.';
COMMENT ON COLUMN eskit_lease.blockers.consumer IS 'The session concerned.';
COMMENT ON COLUMN eskit_lease.blockers.granted IS 'False while it waits itself.';
COMMENT ON COLUMN eskit_lease.blockers.pid IS 'Process id of the connection; NULL for a prepared transaction.';
COMMENT ON COLUMN eskit_lease.blockers.prepared IS 'Identifier of the prepared transaction, for COMMIT PREPARED or ROLLBACK PREPARED.';
COMMENT ON COLUMN eskit_lease.blockers.since IS 'When the transaction began or was prepared; NULL for another role''s connection unless the reader is a member of pg_read_all_stats.';
