SELECT extract(epoch FROM statement_timestamp() - claimed_at)::float8, claimed_at
FROM eskit_lease._claims AS c
WHERE claimed_at >= $1 AND NOT EXISTS (
    SELECT FROM unnest(c.places, c.partitions) AS p (place, partition)
    JOIN eskit_lease._items AS i ON i.queue = c.queue AND i.partition = coalesce(p.partition, 0) AND i.place = p.place
    WHERE i.claim = c.fence)
ORDER BY claimed_at
LIMIT 1
