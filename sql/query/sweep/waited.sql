SELECT l.resource, l.session
FROM eskit_lease._leases AS l
WHERE l.session = ANY ($1)
  AND EXISTS (SELECT FROM eskit_lease._waiters AS w WHERE w.resource = l.resource)
LIMIT $2 OFFSET $3
