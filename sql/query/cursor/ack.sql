-- Writes nothing if there would be more than $5 ranges beyond the cursor. All ranges lie beyond position + 1, so the
-- cursor reaches one only by an acknowledgement of that position. OFFSET 0 has the union computed once: it costs in
-- proportion to the ranges.
INSERT INTO eskit_lease._cursors AS c (group_name, partition, position, acked, fence, committed_at)
VALUES ($1, $2, CASE WHEN $3 = 1 THEN 1 ELSE 0 END, CASE WHEN $3 = 1 THEN '{}' ELSE int8multirange(int8range($3, $3 + 1)) END, $4,
        clock_timestamp())
ON CONFLICT (group_name, partition) DO UPDATE
SET (position, acked) = (
        SELECT coalesce(upper(r.range) - 1, c.position),
               CASE WHEN r.range IS NULL THEN a.acked ELSE a.acked - int8multirange(r.range) END
        FROM (SELECT CASE WHEN $3 <= c.position THEN c.acked ELSE c.acked + int8multirange(int8range($3, $3 + 1)) END AS acked
              OFFSET 0) AS a
        LEFT JOIN LATERAL (SELECT range FROM unnest(a.acked) AS range WHERE $3 = c.position + 1 AND range @> $3) AS r ON true),
    fence = $4, committed_at = clock_timestamp()
WHERE $3 <= c.position + 1
   OR (SELECT count(*) FROM unnest(c.acked)) < $5
   OR (SELECT count(*) FROM unnest(c.acked + int8multirange(int8range($3, $3 + 1)))) <= $5
RETURNING c.position
