SELECT l.resource, l.slot, l.fence, l.session, s.consumer
FROM eskit_lease._leases AS l
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
WHERE l.resource = ANY ($1)
