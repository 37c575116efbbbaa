-- Nothing, when there would be more than $5 ranges beyond the cursor.
INSERT INTO eskit_lease._cursors AS c (group_name, partition, position, acked, fence, committed_at)
VALUES ($1, $2, CASE WHEN $3 = 1 THEN 1 ELSE 0 END, CASE WHEN $3 = 1 THEN '{}' ELSE int8multirange(int8range($3, $3 + 1)) END, $4,
        clock_timestamp())
ON CONFLICT (group_name, partition) DO UPDATE
SET (position, acked) = (
        SELECT coalesce(upper(r.range) - 1, c.position),
               a.acked - int8multirange(int8range(NULL, coalesce(upper(r.range), c.position + 1)))
        FROM (SELECT c.acked + int8multirange(int8range($3, $3 + 1)) AS acked) AS a
        LEFT JOIN LATERAL (SELECT range FROM unnest(a.acked) AS range WHERE range @> (c.position + 1)) AS r ON true),
    fence = $4, committed_at = clock_timestamp()
WHERE $3 <= c.position + 1 OR (SELECT count(*) FROM unnest(c.acked + int8multirange(int8range($3, $3 + 1)))) <= $5
RETURNING c.position
