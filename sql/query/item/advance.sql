WITH gone AS (
    DELETE FROM eskit_lease._items WHERE queue = $1 AND partition = $2 AND place = $3 AND claim = 0
    RETURNING queue, partition, id, attempt, added_at, key, error, payload)
INSERT INTO eskit_lease._items (queue, partition, place, id, attempt, added_at, key, error, payload)
SELECT queue, partition, $4, id, attempt, added_at, key, error, payload FROM gone
