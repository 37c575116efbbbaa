UPDATE eskit_lease._leases
SET session = $2, fence = nextval('eskit_lease.fence_seq'), timeline = $3, granted_at = clock_timestamp(), released_at = NULL,
    expired = false
WHERE resource = ANY ($1) AND slot = 0
RETURNING resource, fence
