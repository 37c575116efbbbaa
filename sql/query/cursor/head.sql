UPDATE eskit_lease._heads
SET position = $3, partitions = $4, reported_at = clock_timestamp()
WHERE group_name = $1 AND partition = $2
