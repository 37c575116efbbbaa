-- Views for operators: what became of leases, which of them flap, and where most is going on.

-- Like most views, it joins pg_extension: so PostgreSQL lets no role write through the view.
CREATE VIEW eskit_lease.history AS
SELECT h.at, h.event, h.resource, h.slot, h.fence, h.consumer, h.next_consumer, h.next_fence, h.forced_by, h.why, h.ended_at
FROM pg_extension AS e
CROSS JOIN eskit_lease._history AS h
WHERE e.extname = 'eskit_lease';

COMMENT ON VIEW eskit_lease.history IS 'Lost leases, kept for eskit_lease.history_retention; with eskit_lease.history_grants also ordinary grants and releases. Filter by the column at.';
COMMENT ON COLUMN eskit_lease.history.at IS 'When it was recorded: at the hand-over.';
COMMENT ON COLUMN eskit_lease.history.event IS 'expired (its session ended without closing, as when a lock is not released), taken_over (by a new session of the same consumer), revoked (a partition that was not released in time), forced (by an administrator); with history_grants also granted and released.';
COMMENT ON COLUMN eskit_lease.history.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.history.slot IS 'Permit of a semaphore or partition of a group; 0 for an exclusive lease.';
COMMENT ON COLUMN eskit_lease.history.fence IS 'The fence lost or granted.';
COMMENT ON COLUMN eskit_lease.history.consumer IS 'The consumer that lost it or was granted it; NULL if a session released it by closing.';
COMMENT ON COLUMN eskit_lease.history.next_consumer IS 'The consumer that got it in the same step; NULL if none.';
COMMENT ON COLUMN eskit_lease.history.next_fence IS 'The fence of that consumer.';
COMMENT ON COLUMN eskit_lease.history.forced_by IS 'The role that took it by force, by its name then.';
COMMENT ON COLUMN eskit_lease.history.why IS 'The reason that this role gave.';
COMMENT ON COLUMN eskit_lease.history.ended_at IS 'When its consumer''s hold ended: for expired, the session''s deadline, perhaps long before at. NULL for a grant.';

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
-- Changes are counted by slot: one crash of a member loses all its partitions, which is no flapping.
FROM (SELECT h.*, row_number() OVER (PARTITION BY h.resource, h.slot, CASE WHEN h.event IN ('granted', 'released') THEN h.event END) AS nth
      FROM eskit_lease._history AS h
      WHERE h.at > statement_timestamp() - interval '1 hour') AS h
GROUP BY h.resource;

COMMENT ON VIEW eskit_lease.flapping IS 'Resources that changed hands within the last hour, by the history.';
COMMENT ON COLUMN eskit_lease.flapping.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.flapping.changes IS 'Losses (with history_grants also grants) of the slot with most of them. The following columns count all slots.';
COMMENT ON COLUMN eskit_lease.flapping.expired IS 'Losses by a session that ended without closing.';
COMMENT ON COLUMN eskit_lease.flapping.taken_over IS 'Losses to a new session of the same consumer.';
COMMENT ON COLUMN eskit_lease.flapping.revoked IS 'Partitions taken from owners that did not release them in time.';
COMMENT ON COLUMN eskit_lease.flapping.forced IS 'Losses to an administrator.';
COMMENT ON COLUMN eskit_lease.flapping.granted IS 'Grants, with history_grants.';
COMMENT ON COLUMN eskit_lease.flapping.slots IS 'Slots concerned.';
COMMENT ON COLUMN eskit_lease.flapping.consumers IS 'Consumers concerned.';
COMMENT ON COLUMN eskit_lease.flapping.last_at IS 'Time of the last one.';

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

COMMENT ON VIEW eskit_lease.top IS 'The busiest resources, for \watch: up to 40, first the longest waited for, then the most often lost within the last hour, then the last granted.';
COMMENT ON COLUMN eskit_lease.top.resource IS 'The resource.';
COMMENT ON COLUMN eskit_lease.top.kind IS 'lease, semaphore, group or bridge.';
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
