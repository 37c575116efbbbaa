SELECT extract(epoch FROM statement_timestamp() - released_at)::float8
FROM eskit_lease._leases
WHERE session IS NULL
ORDER BY released_at
LIMIT 1
