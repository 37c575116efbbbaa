UPDATE eskit_lease._leases AS l
SET session = $3, fence = nextval('eskit_lease.fence_seq'), timeline = $4, granted_at = clock_timestamp(), released_at = NULL,
    expired = false, declared = $5
FROM unnest($1, $2) AS n (resource, slot)
WHERE l.resource = n.resource AND l.slot = n.slot
RETURNING l.resource, l.slot, l.fence
