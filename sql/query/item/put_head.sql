INSERT INTO eskit_lease._item_heads (queue, lane, since, partition, id, place, due, key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
