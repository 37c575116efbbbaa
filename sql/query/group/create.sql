INSERT INTO eskit_lease._groups (group_name, assignor, rebalance_timeout_ms, settle_delay_ms) VALUES ($1, $2, $3, $4)
