INSERT INTO eskit_lease._items (queue, partition, place, id, key, payload, added_at)
SELECT $1, n.partition, n.id, n.id, n.key, n.payload, (SELECT clock_timestamp())
FROM unnest($2, $3, $4, $5) AS n (partition, id, key, payload)
