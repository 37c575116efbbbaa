WITH gone AS (
    DELETE FROM eskit_lease._dead_items WHERE id = $1
    RETURNING queue, id, key, error, payload)
INSERT INTO eskit_lease._items (queue, partition, place, id, added_at, key, error, payload)
SELECT queue, $2, $3, id, clock_timestamp(), key, error, payload FROM gone
