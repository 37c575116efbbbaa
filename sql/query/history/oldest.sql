SELECT extract(epoch FROM statement_timestamp() - at)::float8
FROM eskit_lease._history
ORDER BY at
LIMIT 1
