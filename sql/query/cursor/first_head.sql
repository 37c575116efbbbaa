INSERT INTO eskit_lease._heads (group_name, partition, position, partitions, reported_at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (group_name, partition) DO NOTHING
