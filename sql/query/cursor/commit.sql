-- Moves forward only. A range acknowledged up to the new position, or contiguous with it, is passed too.
INSERT INTO eskit_lease._cursors AS c (group_name, partition, position, fence, committed_at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (group_name, partition) DO UPDATE
SET (position, acked) = (
        SELECT coalesce(upper(r.range) - 1, $3), a.acked - int8multirange(int8range(NULL, coalesce(upper(r.range), $3 + 1)))
        FROM (SELECT c.acked AS acked) AS a
        LEFT JOIN LATERAL (SELECT range FROM unnest(a.acked) AS range WHERE range @> ($3 + 1)) AS r ON true),
    fence = $4, committed_at = clock_timestamp()
WHERE c.position < $3
RETURNING c.position
