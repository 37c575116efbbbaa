UPDATE eskit_lease._executions SET state = $2, finished_at = clock_timestamp(), error = $3 WHERE key = $1 AND fence = $4
