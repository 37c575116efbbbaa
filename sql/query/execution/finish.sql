UPDATE eskit_lease._executions SET state = 'done', finished_at = clock_timestamp(), result = $2 WHERE key = $1 AND fence = $3
