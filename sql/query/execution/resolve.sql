UPDATE eskit_lease._executions
SET state = $2, result = $3, finished_at = coalesce(finished_at, clock_timestamp()), resolved_by = $4, resolved_at = clock_timestamp()
WHERE key = $1 AND fence = $5
