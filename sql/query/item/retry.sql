WITH gone AS (
    DELETE FROM eskit_lease._items WHERE queue = $1 AND partition = $2 AND place = $3 AND claim = $4
    RETURNING queue, partition, id, attempt, added_at, key, payload)
INSERT INTO eskit_lease._later (queue, partition, due, id, attempt, added_at, key, error, payload)
SELECT queue, partition, $6, id, attempt, added_at, key, $5, payload FROM gone
