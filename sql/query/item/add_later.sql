INSERT INTO eskit_lease._later (queue, partition, id, key, payload, due, added_at)
VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())
