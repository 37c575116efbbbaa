SELECT extract(epoch FROM statement_timestamp() - coalesce(resolved_at, finished_at))::float8
FROM eskit_lease._executions
WHERE state = 'done' OR resolved_at IS NOT NULL
ORDER BY coalesce(resolved_at, finished_at)
LIMIT 1
