SELECT extract(epoch FROM statement_timestamp() - died_at)::float8, died_at
FROM eskit_lease._dead_items
WHERE died_at >= $1
ORDER BY died_at
LIMIT 1
