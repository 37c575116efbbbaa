-- Makes the row of a cursor. Waits for another transaction that is making it, for callers that must notice that.
INSERT INTO eskit_lease._cursors (group_name, partition, position, fence, committed_at)
VALUES ($1, $2, 0, $3, clock_timestamp())
ON CONFLICT (group_name, partition) DO NOTHING
