WITH old AS (DELETE FROM eskit_lease._cursors WHERE group_name = $1 RETURNING partition, position, fence),
     least AS (SELECT min(coalesce(o.position, 0)) AS position, max(o.fence) AS fence
               FROM generate_series(0, $2 - 1) AS p (partition)
               LEFT JOIN old AS o ON o.partition = p.partition)
INSERT INTO eskit_lease._cursors (group_name, partition, position, fence, committed_at)
SELECT $1, p.partition, least.position, least.fence, clock_timestamp()
FROM least, generate_series(0, $3 - 1) AS p (partition)
WHERE least.position > 0
