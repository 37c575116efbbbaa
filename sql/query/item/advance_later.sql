WITH gone AS (
    DELETE FROM eskit_lease._later WHERE queue = $1 AND partition = $2 AND due = $3 AND id = $4
    RETURNING queue, partition, id, attempt, added_at, key, error, payload)
INSERT INTO eskit_lease._items (queue, partition, place, id, attempt, added_at, key, error, payload)
SELECT queue, partition, $5, id, attempt, added_at, key, error, payload FROM gone
