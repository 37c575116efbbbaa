INSERT INTO eskit_lease._executions (key, state, session, consumer, role, fence, attempts, retry_in_doubt, started_at)
VALUES ($1, 'running', $2, $3, $4, nextval('eskit_lease.fence_seq'), 1, $5, clock_timestamp())
RETURNING fence, started_at
