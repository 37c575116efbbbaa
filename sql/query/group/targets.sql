INSERT INTO eskit_lease._partitions AS p (group_name, partition, target, revoking, revoke_at, boot_id)
SELECT $1, n.partition, nullif(n.target, '00000000-0000-0000-0000-000000000000'), nullif(n.revoking, 0), nullif(n.revoke_at, 0), $6
FROM unnest($2, $3, $4, $5) AS n (partition, target, revoking, revoke_at)
ON CONFLICT (group_name, partition) DO UPDATE
SET target = excluded.target, revoking = excluded.revoking, revoke_at = excluded.revoke_at, boot_id = excluded.boot_id
