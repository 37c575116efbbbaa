SELECT r.resource, w.session
FROM unnest($1) AS r (resource)
CROSS JOIN LATERAL (
    SELECT w.session
    FROM eskit_lease._waiters AS w
    JOIN eskit_lease._sessions AS s ON s.session = w.session
    WHERE w.resource = r.resource
      AND NOT s.draining
      AND s.session <> ALL ($2)
      AND eskit_lease._eligible(s.session, s.boot_id, s.ttl_ms)
    ORDER BY w.place
    LIMIT 1
) AS w
