SELECT extract(epoch FROM statement_timestamp() - died_at)::float8
FROM eskit_lease._dead_items
ORDER BY died_at
LIMIT 1
