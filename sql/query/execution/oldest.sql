SELECT extract(epoch FROM statement_timestamp() - coalesce(resolved_at, finished_at))::float8, coalesce(resolved_at, finished_at)
FROM eskit_lease._executions
WHERE (state = 'done' OR resolved_at IS NOT NULL) AND coalesce(resolved_at, finished_at) >= $1
ORDER BY coalesce(resolved_at, finished_at)
LIMIT 1
