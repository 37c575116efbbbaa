-- For a caller that must meet, and not pass over, another transaction that does the same.
INSERT INTO eskit_lease._cursors (group_name, partition, position, fence, committed_at)
VALUES ($1, $2, 0, $3, clock_timestamp())
ON CONFLICT (group_name, partition) DO NOTHING
