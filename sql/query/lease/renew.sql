SELECT l.session, l.fence, l.timeline, s.consumer, l.expired
FROM eskit_lease._leases AS l
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
WHERE l.resource = $1 AND l.slot = 0
