UPDATE eskit_lease._leases AS l
SET session = NULL, released_at = clock_timestamp(), expired = $3
FROM unnest($1, $2) AS n (resource, slot)
WHERE l.resource = n.resource AND l.slot = n.slot
