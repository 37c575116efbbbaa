INSERT INTO eskit_lease._later (queue, partition, id, key, payload, due, added_at)
SELECT $1, n.partition, n.id, n.key, n.payload, $6, (SELECT clock_timestamp())
FROM unnest($2, $3, $4, $5) AS n (partition, id, key, payload)
