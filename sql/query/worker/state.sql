SELECT l.resource, l.slot, l.fence, l.session, s.consumer
FROM unnest($1, $2) AS n (resource, slot)
JOIN eskit_lease._leases AS l ON l.resource = n.resource AND l.slot = n.slot
LEFT JOIN eskit_lease._sessions AS s ON s.session = l.session
