SELECT extract(epoch FROM statement_timestamp() - at)::float8, at
FROM eskit_lease._history
WHERE at >= $1
ORDER BY at
LIMIT 1
