INSERT INTO eskit_lease._queues (queue, number, max_attempts, backoff_ms, ordering, owner, group_name)
VALUES ($1, nextval('eskit_lease._queue_seq')::int, $2, $3, $4, $5, $6)
