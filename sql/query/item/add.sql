INSERT INTO eskit_lease._items (queue, partition, place, id, key, payload, added_at)
VALUES ($1, $2, $3, $3, $4, $5, clock_timestamp())
