-- Sessions that hold leases, places or memberships and have no row.
SELECT o.session
FROM (SELECT session FROM eskit_lease._leases WHERE session IS NOT NULL
      UNION
      SELECT session FROM eskit_lease._waiters
      UNION
      SELECT session FROM eskit_lease._members) AS o
WHERE NOT EXISTS (SELECT FROM eskit_lease._sessions AS s WHERE s.session = o.session)
LIMIT $1
