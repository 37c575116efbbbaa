-- Reads the sequences in this order: so the value of position_since is not older than that of position_base.
SELECT last_value FROM eskit_lease.position_base
UNION ALL SELECT last_value FROM eskit_lease.position_high
UNION ALL SELECT last_value FROM eskit_lease.position_cluster
UNION ALL SELECT last_value FROM eskit_lease.position_origin
UNION ALL SELECT last_value FROM eskit_lease.position_since
