INSERT INTO eskit_lease._history (at, event, resource, slot, fence, consumer, next_consumer, next_fence, forced_by, why, ended_at)
VALUES (clock_timestamp(), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
