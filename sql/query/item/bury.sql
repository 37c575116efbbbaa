WITH gone AS (
    DELETE FROM eskit_lease._items WHERE queue = $1 AND partition = $2 AND place = $3 AND claim = $4
    RETURNING id, queue, attempt, added_at, key, payload)
INSERT INTO eskit_lease._dead_items (id, queue, attempt, added_at, died_at, key, error, payload)
SELECT id, queue, attempt, added_at, clock_timestamp(), key, $5, payload FROM gone
