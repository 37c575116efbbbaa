-- Begins another attempt. Of the former attempts only their number is kept.
UPDATE eskit_lease._executions
SET state = 'running', session = $2, consumer = $3, role = $4, fence = nextval('eskit_lease.fence_seq'), attempts = attempts + 1,
    retry_in_doubt = $5, started_at = clock_timestamp(), finished_at = NULL, result = NULL, error = NULL, resolved_by = NULL,
    resolved_at = NULL
WHERE key = $1 AND fence = $6
RETURNING fence, started_at
