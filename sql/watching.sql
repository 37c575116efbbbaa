-- What people look at who keep watch: what became of leases, which of them do not come to rest, and where most is going on.

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
