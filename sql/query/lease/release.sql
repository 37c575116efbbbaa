UPDATE eskit_lease._leases
SET session = NULL, released_at = clock_timestamp(), expired = $2
WHERE resource = ANY ($1) AND slot = 0
