INSERT INTO eskit_lease._leases (resource, slot, session, fence, timeline, granted_at)
SELECT unnest($1), 0, $2, nextval('eskit_lease.fence_seq'), $3, clock_timestamp()
RETURNING resource, fence
