-- Lists sessions that have no row but own rows of other tables.
SELECT o.session
FROM (SELECT session FROM eskit_lease._leases WHERE session IS NOT NULL
      UNION
      SELECT session FROM eskit_lease._waiters
      UNION
      SELECT session FROM eskit_lease._members
      UNION
      SELECT session FROM eskit_lease._successions
      UNION
      SELECT session FROM eskit_lease._claims) AS o
WHERE NOT EXISTS (SELECT FROM eskit_lease._sessions AS s WHERE s.session = o.session)
LIMIT $1
