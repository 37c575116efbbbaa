SELECT d.session
FROM unnest($1) AS d (session)
WHERE NOT EXISTS (SELECT FROM eskit_lease._leases AS l WHERE l.session = d.session)
  AND NOT EXISTS (SELECT FROM eskit_lease._waiters AS w WHERE w.session = d.session)
  AND NOT EXISTS (SELECT FROM eskit_lease._members AS m WHERE m.session = d.session)
  AND NOT EXISTS (SELECT FROM eskit_lease._claims AS c WHERE c.session = d.session)
