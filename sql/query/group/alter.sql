UPDATE eskit_lease._groups
SET assignor = $2, rebalance_timeout_ms = coalesce($3, rebalance_timeout_ms), settle_delay_ms = coalesce($4, settle_delay_ms),
    stale = stale OR assignor <> $2
WHERE group_name = $1
