SELECT extract(epoch FROM statement_timestamp() - released_at)::float8, released_at
FROM eskit_lease._leases
WHERE session IS NULL AND released_at >= $1
ORDER BY released_at
LIMIT 1
