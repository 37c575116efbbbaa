INSERT INTO eskit_lease._leases (resource, slot, session, fence, timeline, granted_at, declared)
SELECT unnest($1), unnest($2), $3, nextval('eskit_lease.fence_seq'), $4, clock_timestamp(), $5
RETURNING resource, slot, fence
